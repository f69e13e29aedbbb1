#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/qkv/qkv_cuda.h"

namespace celer::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kHeadsPerWarp = 4;
constexpr int kMaxHeadDim = 512;

__device__ __forceinline__ void StoreKv(const DeviceKv& kv, std::byte* to, int64_t at, float value) {
  if (kv.dtype == DType::kBf16)
    reinterpret_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16(value);
  else
    reinterpret_cast<__half*>(to)[at] = __float2half_rn(value);
}

// Grid: (heads of q, k and v in bunches, tokens). A warp finishes one head after the other.
__global__ void __launch_bounds__(kWarps * 32) FinishKernel(const __grid_constant__ FinishQkvArgs a) {
  LetNextStart();
  WaitForPrevious();
  __shared__ float heads[kWarps][kMaxHeadDim];
  const int token = blockIdx.y, dim = a.kv.head_dim, half = a.rope_dim / 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* head = heads[warp];
  const int position = __ldcg(a.batch.positions + token);
  const int64_t row = __ldcg(a.batch.sequence + token);
  const int64_t block = __ldcg(a.batch.block_table + row * a.batch.max_blocks + position / kKvBlock);
  const float* cosines = a.rope_cos + static_cast<int64_t>(position) * half;
  const float* sines = a.rope_sin + static_cast<int64_t>(position) * half;
  for (int n = 0; n < kHeadsPerWarp; ++n) {
    const int which = (blockIdx.x * kHeadsPerWarp + n) * kWarps + warp;
    if (which >= a.heads + 2 * a.kv.kv_heads) return;
    const bool is_q = which < a.heads, is_k = !is_q && which < a.heads + a.kv.kv_heads;
    const int index = is_q ? which : is_k ? which - a.heads : which - a.heads - a.kv.kv_heads;
    const float* from = is_q   ? a.q + token * a.q_stride + index * dim
                        : is_k ? a.k + token * a.kv_stride + index * dim
                               : a.v + token * a.kv_stride + index * dim;
    const float* bias = is_q ? a.q_bias : is_k ? a.k_bias : a.v_bias;
    float squares = 0;
    for (int i = lane; i < dim; i += 32) {
      const float value = __ldcg(from + i) + (bias ? __ldg(bias + index * dim + i) : 0.0f);
      head[i] = value;
      squares += value * value;
    }
    const float* norm = is_q ? a.q_norm : is_k ? a.k_norm : nullptr;
    if (norm) {
      for (int x = 16; x > 0; x /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, x);
      const float scale = 1.0f / sqrtf(squares / static_cast<float>(dim) + a.eps);
      for (int i = lane; i < dim; i += 32) head[i] *= scale * __ldg(norm + i);
    }
    __syncwarp();
    const int64_t cached =
        ((block * a.kv.kv_heads + index) * kKvBlock + position % kKvBlock) * a.kv.padded_dim;
    for (int i = lane; i < dim; i += 32) {
      float value = head[i];
      if ((is_q || is_k) && i < a.rope_dim) {
        const int pair = i < half ? i : i - half;
        const float cosine = __ldg(cosines + pair), sine = __ldg(sines + pair);
        value = i < half ? value * cosine - head[i + half] * sine : value * cosine + head[pair] * sine;
      }
      if (is_q)
        a.q_out[(static_cast<int64_t>(token) * a.heads + index) * dim + i] = value;
      else
        StoreKv(a.kv, is_k ? a.kv.k : a.kv.v, cached + i, value);
    }
    __syncwarp();
  }
}

}  // namespace

cudaError_t LaunchFinishQkv(const FinishQkvArgs& args, cudaStream_t stream) {
  if (args.kv.head_dim > kMaxHeadDim) return cudaErrorInvalidValue;
  const int all = args.heads + 2 * args.kv.kv_heads, bunch = kWarps * kHeadsPerWarp;
  return Launch(
      FinishKernel,
      dim3(static_cast<unsigned>((all + bunch - 1) / bunch), static_cast<unsigned>(args.batch.count)),
      dim3(kWarps * 32), 0, stream, args);
}

}  // namespace celer::cuda
