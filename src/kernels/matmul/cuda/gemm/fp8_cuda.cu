// The kernels of fp8_cuda.h. A block has one row; its values stay in registers until their largest is known.
#include "kernels/matmul/cuda/gemm/fp8_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/not_finite.cuh"
#include "kernels/matmul/cuda/matvec/matvec_cuda.cuh"

namespace celer::cuda {
namespace {

constexpr float kLargest = 448;  // of e4m3
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

// Of all threads of the block, each with its own; `op` is associative. Twice in a kernel with different
// rooms.
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

// Registers of a thread: kKept times eight columns, kStep apart.
template <int kKept>
__device__ __forceinline__ void StoreRow(const Eight (&kept)[kKept], int padded, int64_t row,
                                         const Fp8Rows& out, float* room) {
  float largest = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k)
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = MaxOrNan(largest, fabsf(kept[k].v[i]));
  largest = OfBlock(largest, room, [](float a, float b) { return MaxOrNan(a, b); });
  const float inverse = largest == 0 ? 0 : kLargest / largest;
  if (threadIdx.x == 0) out.scales[row] = largest / kLargest;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int column = k * kStep + static_cast<int>(threadIdx.x) * 8;
    if (column >= padded) break;
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t two = __nv_cvt_float2_to_fp8x2(
          make_float2(kept[k].v[2 * i] * inverse, kept[k].v[2 * i + 1] * inverse), __NV_SATFINITE, __NV_E4M3);
      words[i / 2] |= two << (i % 2 * 16);
    }
    *reinterpret_cast<uint2*>(static_cast<char*>(out.codes) + row * padded + column) =
        make_uint2(words[0], words[1]);
  }
}

template <int kKept>
__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(const __nv_bfloat16* rows, int padded, const Fp8Rows out) {
  __shared__ float room[kThreads / 32];
  Eight kept[kKept] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int column = k * kStep + static_cast<int>(threadIdx.x) * 8;
    if (column < padded) kept[k] = LoadBf16(rows + static_cast<int64_t>(blockIdx.x) * padded + column);
  }
  StoreRow(kept, padded, blockIdx.x, out, room);
}

template <int kKept>
__global__ void __launch_bounds__(kThreads) ToFp8Kernel(const __grid_constant__ ToFp8Args a) {
  __shared__ float rooms[2][kThreads / 32];
  LetNextStart();
  WaitForPrevious();
  const int64_t token = blockIdx.x;
  float* row = a.x + token * a.cols;
  const auto* sums = static_cast<const __nv_bfloat16*>(a.sums.values);
  const float of_token = sums ? __ldcg(a.sums.token_scales + token) : 0;
  Eight kept[kKept] = {};
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int column = k * kStep + static_cast<int>(threadIdx.x) * 8;
    if (column >= a.cols) break;
    kept[k] = LoadFloats(row + column);
    if (sums) {
      const Eight more = LoadBf16(sums + token * a.cols + column),
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
  StoreRow(kept, a.padded, token, a.out, rooms[1]);
}

template <int kKept>
__global__ void __launch_bounds__(kThreads) ActivateKernel(const Fp8Sums gate_up, int cols, int padded,
                                                           DeviceActivation activation, const Fp8Rows out) {
  __shared__ float room[kThreads / 32];
  LetNextStart();
  WaitForPrevious();
  const int64_t token = blockIdx.x;
  const auto* gate = static_cast<const __nv_bfloat16*>(gate_up.values) + token * 2 * cols;
  const float of_token = __ldcg(gate_up.token_scales + token);
  Eight kept[kKept] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int column = k * kStep + static_cast<int>(threadIdx.x) * 8;
    if (column >= cols) break;
    const Eight g = LoadBf16(gate + column), u = LoadBf16(gate + cols + column);
    const Eight by_g = LoadFloats(gate_up.row_scales + column),
                by_u = LoadFloats(gate_up.row_scales + cols + column);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      kept[k].v[i] =
          matvec::Activate(activation, g.v[i] * (by_g.v[i] * of_token)) * u.v[i] * (by_u.v[i] * of_token);
  }
  StoreRow(kept, padded, token, out, room);
}

// Calls run.operator()<kKept>() with enough registers for the columns.
template <class Run>
cudaError_t WithKept(int padded, const Run& run) {
  if (padded > kMaxFp8Columns || padded % 8 != 0) return cudaErrorInvalidValue;
  if (padded <= kStep) return run.template operator()<1>();
  if (padded <= 2 * kStep) return run.template operator()<2>();
  if (padded <= 4 * kStep) return run.template operator()<4>();
  return run.template operator()<8>();
}

}  // namespace

cudaError_t LaunchQuantizeRows(const void* rows, int64_t count, int padded, const Fp8Rows& out,
                               cudaStream_t stream) {
  return WithKept(padded, [&]<int kKept>() {
    QuantizeKernel<kKept><<<static_cast<unsigned>(count), kThreads, 0, stream>>>(
        static_cast<const __nv_bfloat16*>(rows), padded, out);
    return cudaGetLastError();
  });
}

cudaError_t LaunchToFp8(const ToFp8Args& args, cudaStream_t stream) {
  if (args.cols % 8 != 0) return cudaErrorInvalidValue;
  return WithKept(args.padded, [&]<int kKept>() {
    return Launch(ToFp8Kernel<kKept>, dim3(static_cast<unsigned>(args.tokens)), dim3(kThreads), 0, stream,
                  args);
  });
}

cudaError_t LaunchActivateFp8(const Fp8Sums& gate_up, int64_t tokens, int cols, int padded,
                              DeviceActivation activation, const Fp8Rows& out, cudaStream_t stream) {
  if (cols % 8 != 0) return cudaErrorInvalidValue;
  return WithKept(padded, [&]<int kKept>() {
    return Launch(ActivateKernel<kKept>, dim3(static_cast<unsigned>(tokens)), dim3(kThreads), 0, stream,
                  gate_up, cols, padded, activation, out);
  });
}

}  // namespace celer::cuda
