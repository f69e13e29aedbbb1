// The kernels of codes_cuda.h. A thread block has one row; its values stay in registers until the absmax is
// known.
#include "kernels/llm/matmul/cuda/gemm/codes_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/shared/cuda/launch.cuh"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda {
namespace {

template <Code C>
constexpr float kLargest = C == Code::kFp8 ? 448 : 127;
constexpr int kThreads = 512, kStep = kThreads * 8;

struct Eight {
  float v[8];
};

__device__ __forceinline__ Eight LoadFloats(const float* from) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from)),
               b = __ldcg(reinterpret_cast<const float4*>(from) + 1);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ Eight LoadBf16(const __nv_bfloat16* from) {
  const uint4 words = __ldcg(reinterpret_cast<const uint4*>(from));
  const uint32_t w[4] = {words.x, words.y, words.z, words.w};
  Eight out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = matvec::UnpackBf16(w[i]);
    out.v[2 * i] = two.x, out.v[2 * i + 1] = two.y;
  }
  return out;
}

template <Code C>
__device__ __forceinline__ Eight LoadSums(const void* values, int64_t at) {
  if constexpr (C == Code::kFp8) {
    return LoadBf16(static_cast<const __nv_bfloat16*>(values) + at);
  } else {
    const int4* from = reinterpret_cast<const int4*>(static_cast<const int32_t*>(values) + at);
    const int4 a = __ldcg(from), b = __ldcg(from + 1);
    return {{static_cast<float>(a.x), static_cast<float>(a.y), static_cast<float>(a.z),
             static_cast<float>(a.w), static_cast<float>(b.x), static_cast<float>(b.y),
             static_cast<float>(b.z), static_cast<float>(b.w)}};
  }
}

// A reduction over all threads of the block; `op` is associative. Twice in a kernel with different rooms.
template <class Op>
__device__ __forceinline__ float OfBlock(float value, float* room, const Op& op) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, apart));
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  value = room[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) value = op(value, room[i]);
  return value;
}

// Four values, times the inverse of a row's scale, as codes.
template <Code C>
__device__ __forceinline__ uint32_t Encode(const float* v, float inverse) {
  if constexpr (C == Code::kFp8) {
    const auto two = [&](int i) -> uint32_t {
      return __nv_cvt_float2_to_fp8x2(make_float2(v[i] * inverse, v[i + 1] * inverse), __NV_SATFINITE,
                                      __NV_E4M3);
    };
    return two(0) | two(2) << 16;
  } else {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int code = max(-127, min(127, __float2int_rn(v[i] * inverse)));
      word |= (static_cast<uint32_t>(code) & 0xffu) << (i * 8);
    }
    return word;
  }
}

// Of integers, what is quantized is the Hadamard transform of every 64 columns, which eight neighbouring
// threads hold.
template <Code C>
__device__ __forceinline__ void Rotate(Eight& columns) {
  if constexpr (C == Code::kInt8) {
#pragma unroll
    for (int apart = 1; apart < 8; apart *= 2)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i & apart) continue;
        const float a = columns.v[i], b = columns.v[i + apart];
        columns.v[i] = a + b, columns.v[i + apart] = a - b;
      }
#pragma unroll
    for (int apart = 1; apart < kRotated / 8; apart *= 2) {
      const float sign = threadIdx.x & apart ? -1 : 1;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        columns.v[i] = fmaf(sign, columns.v[i], __shfl_xor_sync(0xffffffffu, columns.v[i], apart));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) columns.v[i] *= 0.125f;
  }
}
static_assert(kRotated == 64);  // the square root of it is 1 / 0.125

// Registers of a thread: kKept times eight columns, kStep apart.
template <Code C, int kKept>
__device__ __forceinline__ void StoreRow(Eight (&kept)[kKept], int padded, int64_t row, const CodeRows& out,
                                         float* room) {
#pragma unroll
  for (int k = 0; k < kKept; ++k) Rotate<C>(kept[k]);
  float largest = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k)
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = MaxOrNan(largest, fabsf(kept[k].v[i]));
  largest = OfBlock(largest, room, [](float a, float b) { return MaxOrNan(a, b); });
  // The inverse of a subnormal is infinite: nothing but zeros is left of such a row. A value that is not
  // finite makes the scale so.
  float inverse = largest == 0 ? 0 : kLargest<C> / largest;
  if (isinf(inverse)) inverse = 0;
  if (threadIdx.x == 0) out.scales[row] = largest / kLargest<C>;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int column = k * kStep + static_cast<int>(threadIdx.x) * 8;
    if (column >= padded) break;
    *reinterpret_cast<uint2*>(static_cast<char*>(out.codes) + row * padded + column) =
        make_uint2(Encode<C>(kept[k].v, inverse), Encode<C>(kept[k].v + 4, inverse));
  }
}

template <Code C, int kKept>
__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(const __nv_bfloat16* rows, int padded, const CodeRows out) {
  __shared__ float room[kThreads / 32];
  Eight kept[kKept] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int column = k * kStep + static_cast<int>(threadIdx.x) * 8;
    if (column < padded) kept[k] = LoadBf16(rows + static_cast<int64_t>(blockIdx.x) * padded + column);
  }
  StoreRow<C>(kept, padded, blockIdx.x, out, room);
}

template <Code C, int kKept>
__global__ void __launch_bounds__(kThreads) ToCodesKernel(const __grid_constant__ ToCodesArgs a) {
  __shared__ float rooms[2][kThreads / 32];
  LetNextStart();
  WaitForPrevious();
  const int64_t token = blockIdx.x;
  float* row = a.x + token * a.cols;
  const void* sums = a.sums.values;
  const float of_token = sums ? __ldcg(a.sums.token_scales + token) : 0;
  Eight kept[kKept] = {};
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int column = k * kStep + static_cast<int>(threadIdx.x) * 8;
    if (column >= a.cols) break;
    kept[k] = LoadFloats(row + column);
    if (sums) {
      const Eight more = LoadSums<C>(sums, token * a.cols + column),
                  by = LoadFloats(a.sums.row_scales + column);
#pragma unroll
      for (int i = 0; i < 8; ++i) kept[k].v[i] += more.v[i] * (by.v[i] * of_token);
      const Eight& v = kept[k];
      reinterpret_cast<float4*>(row + column)[0] = make_float4(v.v[0], v.v[1], v.v[2], v.v[3]);
      reinterpret_cast<float4*>(row + column)[1] = make_float4(v.v[4], v.v[5], v.v[6], v.v[7]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += kept[k].v[i] * kept[k].v[i];
  }
  if (!a.out.codes) return;
  if (a.norm) {
    squares = OfBlock(squares, rooms[0], [](float x, float y) { return x + y; });
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(a.cols) + a.eps);
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const int column = k * kStep + static_cast<int>(threadIdx.x) * 8;
      if (column >= a.cols) break;
      const Eight norm = LoadFloats(a.norm + column);
#pragma unroll
      for (int i = 0; i < 8; ++i) kept[k].v[i] *= scale * norm.v[i];
    }
  }
  StoreRow<C>(kept, a.padded, token, a.out, rooms[1]);
}

template <Code C, int kKept>
__global__ void __launch_bounds__(kThreads) ActivateKernel(const CodeSums gate_up, int cols, int padded,
                                                           DeviceActivation activation, const CodeRows out) {
  __shared__ float room[kThreads / 32];
  LetNextStart();
  WaitForPrevious();
  const int64_t token = blockIdx.x;
  const int64_t gate = token * 2 * cols;
  const float of_token = __ldcg(gate_up.token_scales + token);
  Eight kept[kKept] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int column = k * kStep + static_cast<int>(threadIdx.x) * 8;
    if (column >= cols) break;
    const Eight g = LoadSums<C>(gate_up.values, gate + column),
                u = LoadSums<C>(gate_up.values, gate + cols + column);
    const Eight by_g = LoadFloats(gate_up.row_scales + column),
                by_u = LoadFloats(gate_up.row_scales + cols + column);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      kept[k].v[i] =
          matvec::Activate(activation, g.v[i] * (by_g.v[i] * of_token)) * u.v[i] * (by_u.v[i] * of_token);
  }
  StoreRow<C>(kept, padded, token, out, room);
}

// Calls run.operator()<C, kKept>() with enough registers for the columns.
template <Code C, class Run>
cudaError_t WithKept(int padded, const Run& run) {
  if (padded > kMaxCodeColumns || padded % kRotated != 0) return cudaErrorInvalidValue;
  if (padded <= kStep) return run.template operator()<C, 1>();
  if (padded <= 2 * kStep) return run.template operator()<C, 2>();
  if (padded <= 4 * kStep) return run.template operator()<C, 4>();
  return run.template operator()<C, 8>();
}
template <class Run>
cudaError_t WithCode(Code code, int padded, const Run& run) {
  return code == Code::kFp8 ? WithKept<Code::kFp8>(padded, run) : WithKept<Code::kInt8>(padded, run);
}

}  // namespace

cudaError_t LaunchQuantizeRows(Code code, const void* rows, int64_t count, int padded, const CodeRows& out,
                               cudaStream_t stream) {
  return WithCode(code, padded, [&]<Code C, int kKept>() {
    QuantizeKernel<C, kKept><<<static_cast<unsigned>(count), kThreads, 0, stream>>>(
        static_cast<const __nv_bfloat16*>(rows), padded, out);
    return cudaGetLastError();
  });
}

cudaError_t LaunchToCodes(const ToCodesArgs& args, cudaStream_t stream) {
  if (args.cols % 8 != 0) return cudaErrorInvalidValue;
  return WithCode(args.code, args.padded, [&]<Code C, int kKept>() {
    return Launch(ToCodesKernel<C, kKept>, dim3(static_cast<unsigned>(args.tokens)), dim3(kThreads), 0,
                  stream, args);
  });
}

cudaError_t LaunchActivateCodes(Code code, const CodeSums& gate_up, int64_t tokens, int cols, int padded,
                                DeviceActivation activation, const CodeRows& out, cudaStream_t stream) {
  if (cols % 8 != 0) return cudaErrorInvalidValue;
  return WithCode(code, padded, [&]<Code C, int kKept>() {
    return Launch(ActivateKernel<C, kKept>, dim3(static_cast<unsigned>(tokens)), dim3(kThreads), 0, stream,
                  gate_up, cols, padded, activation, out);
  });
}

}  // namespace celer::cuda
