// Two kernels behind qkv_cuda.h: one for heads of any size, and a faster one for heads of 64 and 128.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include "kernels/llm/qkv/qkv_cuda.h"
#include "kernels/llm/qkv/store_row.cuh"
#include "kernels/shared/cuda/launch.cuh"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kHeadsPerWarp = 4;
constexpr int kMaxHeadDim = 512;

// Grid: (heads of q, k and v in bunches, tokens). A warp finishes one head after the other.
__global__ void __launch_bounds__(kWarps * 32) FinishKernel(const __grid_constant__ FinishQkvArgs a) {
  LetNextStart();
  WaitForPrevious();
  __shared__ float heads[kWarps][2][kMaxHeadDim];
  const int token = blockIdx.y, dim = a.kv.head_dim, half = a.rope_dim / 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float *head = heads[warp][0], *row = heads[warp][1];
  const int position = __ldcg(a.batch.positions + token);
  const int64_t sequence = __ldcg(a.batch.sequence + token);
  const int64_t block = __ldcg(a.batch.block_table + sequence * a.batch.max_blocks + position / kKvBlock);
  const float* cosines = a.rope_cos + static_cast<int64_t>(position) * half;
  const float* sines = a.rope_sin + static_cast<int64_t>(position) * half;
  for (int n = 0; n < kHeadsPerWarp; ++n) {
    const int which = (blockIdx.x * kHeadsPerWarp + n) * kWarps + warp;
    if (which >= a.heads + 2 * a.kv.kv_heads) return;
    const bool is_q = which < a.heads, is_k = !is_q && which < a.heads + a.kv.kv_heads;
    const int index = is_q ? which : is_k ? which - a.heads : which - a.heads - a.kv.kv_heads;
    const float* from = static_cast<const float*>(is_q   ? a.q
                                                  : is_k ? a.k
                                                         : a.v) +
                        token * (is_q ? a.q_stride : a.kv_stride) + index * dim;
    const float* bias = is_q ? a.q_bias : is_k ? a.k_bias : a.v_bias;
    float squares = 0;
    const float* scales = a.row_scales ? a.row_scales + which * dim : nullptr;
    const float of_token = scales ? __ldcg(a.token_scales + token) : 1;
    for (int i = lane; i < dim; i += 32) {
      const float sum = __ldcg(from + i);
      const float value = (a.integer_in ? static_cast<float>(__float_as_int(sum)) : sum) *
                              (scales ? __ldg(scales + i) * of_token : 1) +
                          (bias ? __ldg(bias + index * dim + i) : 0.0f);
      head[i] = value;
      squares += value * value;
    }
    const float* norm = is_q ? a.q_norm : is_k ? a.k_norm : nullptr;
    if (norm) {
      for (int apart = 16; apart > 0; apart /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, apart);
      const float scale = 1.0f / sqrtf(squares / static_cast<float>(dim) + a.eps);
      for (int i = lane; i < dim; i += 32) head[i] *= scale * __ldg(norm + i);
    }
    __syncwarp();
    const int64_t q_at = (static_cast<int64_t>(token) * a.heads + index) * dim;
    float* to = is_q && !a.narrow_q_out ? a.q_out + q_at : row;
    for (int i = lane; i < dim; i += 32) {
      float value = head[i];
      if ((is_q || is_k) && i < a.rope_dim) {
        const int pair = i < half ? i : i - half;
        const float cosine = __ldg(cosines + pair), sine = __ldg(sines + pair);
        value = i < half ? value * cosine - head[i + half] * sine : value * cosine + head[pair] * sine;
      }
      to[i] = value;
    }
    // A lane reads back what it wrote itself.
    if (is_q && a.narrow_q_out) {
      for (int i = lane; i < dim; i += 32) {
        if (a.kv.dtype == DType::kBf16)
          static_cast<__nv_bfloat16*>(a.narrow_q_out)[q_at + i] = __float2bfloat16(row[i]);
        else
          static_cast<__half*>(a.narrow_q_out)[q_at + i] = __float2half_rn(row[i]);
      }
    }
    if (!is_q) StoreRow(a.kv, is_k ? a.kv.k : a.kv.v, block, index, position % kKvBlock, row, lane);
    __syncwarp();
  }
}

// ---- heads of 64 and 128 that are rotated as a whole

// Four values.
struct Four {
  float v[4];
};

// Of values in 16 bits: bf16 if the KV is, f16 otherwise.
__device__ __forceinline__ Four Widen(DType dtype, uint2 bits) {
  const uint32_t words[2] = {bits.x, bits.y};
  Four out;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 two = dtype == DType::kBf16
                           ? __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(words[i]))
                           : __half22float2(reinterpret_cast<const __half2&>(words[i]));
    out.v[2 * i] = two.x, out.v[2 * i + 1] = two.y;
  }
  return out;
}
__device__ __forceinline__ uint2 Narrow(DType dtype, const Four& f) {
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __nv_bfloat162 b = __floats2bfloat162_rn(f.v[2 * i], f.v[2 * i + 1]);
    const __half2 h = __floats2half2_rn(f.v[2 * i], f.v[2 * i + 1]);
    words[i] =
        dtype == DType::kBf16 ? reinterpret_cast<const uint32_t&>(b) : reinterpret_cast<const uint32_t&>(h);
  }
  return make_uint2(words[0], words[1]);
}
__device__ __forceinline__ Four LoadFour(const float* from) {
  const float4 f = __ldg(reinterpret_cast<const float4*>(from));
  return {{f.x, f.y, f.z, f.w}};
}

// A lane's eight dimensions of k or v (part 1 or 2) into the KV, if there is such a head; whole warps.
template <int D>
__device__ __forceinline__ void StoreHead(const DeviceKv& kv, int part, bool exists, int64_t block, int index,
                                          int position, int at, const Four (&f)[2]) {
  constexpr int kLanes = D / 8, kHalf = D / 2;
  std::byte* rows = (part == 1 ? kv.k : kv.v) + kv.HeadOffset(block, index);
  std::byte* row = rows + position % kKvBlock * kv.row_bytes();
  if (kv.dtype == DType::kI8) {  // whole warps: the largest value comes from all lanes of a head
    float top = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) top = MaxOrNan(top, fabsf(f[i / 4].v[i % 4]));
#pragma unroll
    for (int apart = kLanes / 2; apart > 0; apart /= 2)
      top = MaxOrNan(top, __shfl_xor_sync(0xffffffffu, top, apart));
    const float inverse = top > 0 ? 127 / top : 0;  // as in StoreRow()
    const auto byte = [&](float value) {
      return isfinite(inverse) ? static_cast<int8_t>(__float2int_rn(value * inverse)) : int8_t{0};
    };
    if (part == 0 || !exists) return;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      *reinterpret_cast<char4*>(row + at + h * kHalf) =
          make_char4(byte(f[h].v[0]), byte(f[h].v[1]), byte(f[h].v[2]), byte(f[h].v[3]));
    if (at == 0) reinterpret_cast<float*>(rows + kKvBlock * kv.row_bytes())[position % kKvBlock] = top / 127;
    return;
  }
  if (part == 0 || !exists) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (kv.dtype == DType::kFp8E4M3) {
      const auto two = [&](int i) {
        return __nv_cvt_float2_to_fp8x2(make_float2(f[h].v[i], f[h].v[i + 1]), __NV_SATFINITE, __NV_E4M3);
      };
      *reinterpret_cast<ushort2*>(row + at + h * kHalf) = make_ushort2(two(0), two(2));
    } else {
      *reinterpret_cast<uint2*>(row + (at + h * kHalf) * 2) = Narrow(kv.dtype, f[h]);
    }
  }
}

// Grid as above, kManyWarps to a block. A lane has four dimensions of either half of a head, D / 8 lanes make
// a head, and kHeadsPerWarp of them are loaded before the first one is finished.
constexpr int kManyWarps = 4;

template <int D, bool kNarrowIn>
__global__ void __launch_bounds__(kManyWarps * 32)
    FinishHeadsKernel(const __grid_constant__ FinishQkvArgs a) {
  constexpr int kLanes = D / 8, kBeside = 32 / kLanes, kHalf = D / 2;
  using Raw = std::conditional_t<kNarrowIn, uint2, float4>;
  LetNextStart();
  const int token = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, at = lane % kLanes * 4;
  // Of q and k; they come from memory while the kernel in front ends.
  Four norms[2][2];
#pragma unroll
  for (int part = 0; part < 2; ++part)
    if (const float* norm = part == 0 ? a.q_norm : a.k_norm)
#pragma unroll
      for (int h = 0; h < 2; ++h) norms[part][h] = LoadFour(norm + h * kHalf + at);
  WaitForPrevious();
  const int first = (blockIdx.x * kManyWarps + warp) * kHeadsPerWarp * kBeside + lane / kLanes;
  const int all = a.heads + 2 * a.kv.kv_heads;
  const auto part_of = [&](int which) {
    return which < a.heads ? 0 : which < a.heads + a.kv.kv_heads ? 1 : 2;
  };
  const auto index_of = [&](int which, int part) {
    return part == 0 ? which : part == 1 ? which - a.heads : which - a.heads - a.kv.kv_heads;
  };
  Raw raw[kHeadsPerWarp][2];
#pragma unroll
  for (int n = 0; n < kHeadsPerWarp; ++n) {
    const int which = min(first + n * kBeside, all - 1), part = part_of(which);
    const Raw* from = static_cast<const Raw*>(part == 0   ? a.q
                                              : part == 1 ? a.k
                                                          : a.v) +
                      (token * (part == 0 ? a.q_stride : a.kv_stride) + index_of(which, part) * D + at) / 4;
    raw[n][0] = __ldcg(from);
    raw[n][1] = __ldcg(from + kHalf / 4);
  }
  const int position = __ldcg(a.batch.positions + token);
  const int64_t sequence = __ldcg(a.batch.sequence + token);
  const int64_t angles = static_cast<int64_t>(position) * kHalf + at;
  const Four cosine = LoadFour(a.rope_cos + angles), sine = LoadFour(a.rope_sin + angles);
  const int64_t block = __ldcg(a.batch.block_table + sequence * a.batch.max_blocks + position / kKvBlock);
  const float of_token = a.row_scales ? __ldcg(a.token_scales + token) : 1;
#pragma unroll
  for (int n = 0; n < kHeadsPerWarp; ++n) {
    const int which = first + n * kBeside, part = part_of(which), index = index_of(which, part);
    const bool exists = which < all;
    Four f[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kNarrowIn)
        f[h] = Widen(a.kv.dtype, raw[n][h]);
      else
        f[h] = {{raw[n][h].x, raw[n][h].y, raw[n][h].z, raw[n][h].w}};
      if (!kNarrowIn && a.integer_in)
#pragma unroll
        for (float& v : f[h].v) v = static_cast<float>(__float_as_int(v));
    }
    if (a.row_scales && exists) {
      const float* scales = a.row_scales + which * D + at;
#pragma unroll
      for (int i = 0; i < 8; ++i) f[i / 4].v[i % 4] *= __ldg(scales + i / 4 * kHalf + i % 4) * of_token;
    }
    const float* bias = part == 0 ? a.q_bias : part == 1 ? a.k_bias : a.v_bias;
    if (bias && exists) {
#pragma unroll
      for (int i = 0; i < 8; ++i) f[i / 4].v[i % 4] += __ldg(bias + index * D + i / 4 * kHalf + at + i % 4);
    }
    if (a.q_norm || a.k_norm) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) squares += f[i / 4].v[i % 4] * f[i / 4].v[i % 4];
#pragma unroll
      for (int apart = kLanes / 2; apart > 0; apart /= 2)
        squares += __shfl_xor_sync(0xffffffffu, squares, apart);
      const float scale = 1.0f / sqrtf(squares / static_cast<float>(D) + a.eps);
      if (part == 0 ? a.q_norm : part == 1 ? a.k_norm : nullptr) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          f[i / 4].v[i % 4] *= scale * (part == 0 ? norms[0] : norms[1])[i / 4].v[i % 4];
      }
    }
    if (part < 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float first = f[0].v[i], second = f[1].v[i];
        f[0].v[i] = first * cosine.v[i] - second * sine.v[i];
        f[1].v[i] = second * cosine.v[i] + first * sine.v[i];
      }
    }
    if (part == 0) {
      const int64_t to = (static_cast<int64_t>(token) * a.heads + index) * D + at;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (a.narrow_q_out)
          static_cast<uint2*>(a.narrow_q_out)[(to + h * kHalf) / 4] = Narrow(a.kv.dtype, f[h]);
        else
          *reinterpret_cast<float4*>(a.q_out + to + h * kHalf) =
              make_float4(f[h].v[0], f[h].v[1], f[h].v[2], f[h].v[3]);
      }
    }
    StoreHead<D>(a.kv, part, exists, block, index, position, at, f);
  }
}

}  // namespace

bool FinishTakesNarrow(const DeviceKv& kv, int rope_dim) {
  return (kv.head_dim == 64 || kv.head_dim == 128) && rope_dim == kv.head_dim;
}

cudaError_t LaunchFinishQkv(const FinishQkvArgs& args, cudaStream_t stream) {
  const int dim = args.kv.head_dim;
  const bool whole = FinishTakesNarrow(args.kv, args.rope_dim);
  if (dim > kMaxHeadDim || (args.narrow_in && !whole)) return cudaErrorInvalidValue;
  const auto launch = [&](auto kernel, int warps, int heads_of_warp) {
    const int bunch = warps * heads_of_warp, all = args.heads + 2 * args.kv.kv_heads;
    return Launch(
        kernel,
        dim3(static_cast<unsigned>((all + bunch - 1) / bunch), static_cast<unsigned>(args.batch.count)),
        dim3(static_cast<unsigned>(warps * 32)), 0, stream, args);
  };
  if (!whole) return launch(FinishKernel, kWarps, kHeadsPerWarp);
  if (dim == 64)
    return launch(args.narrow_in ? FinishHeadsKernel<64, true> : FinishHeadsKernel<64, false>, kManyWarps,
                  4 * kHeadsPerWarp);
  return launch(args.narrow_in ? FinishHeadsKernel<128, true> : FinishHeadsKernel<128, false>, kManyWarps,
                2 * kHeadsPerWarp);
}

}  // namespace celer::cuda
