#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/qkv/qkv_cuda.h"

namespace celer::cuda {
namespace {

constexpr int kThreads = 64;

__device__ __forceinline__ void StoreKv(const DeviceKv& kv, std::byte* to, int64_t at, float value) {
  if (kv.dtype == DType::kBf16)
    reinterpret_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16(value);
  else
    reinterpret_cast<__half*>(to)[at] = __float2half_rn(value);
}

// Grid: (heads + 2 kv heads, tokens); one head per block.
__global__ void __launch_bounds__(kThreads) FinishKernel(const __grid_constant__ FinishQkvArgs a) {
  LetNextStart();
  WaitForPrevious();
  __shared__ float head[512];
  __shared__ float sums[kThreads / 32];
  const int token = blockIdx.y, dim = a.kv.head_dim, half = a.rope_dim / 2;
  const int which = static_cast<int>(blockIdx.x);
  const bool is_q = which < a.heads, is_k = !is_q && which < a.heads + a.kv.kv_heads;
  const int index = is_q ? which : is_k ? which - a.heads : which - a.heads - a.kv.kv_heads;
  const float* from = is_q   ? a.q + token * a.q_stride + index * dim
                      : is_k ? a.k + token * a.kv_stride + index * dim
                             : a.v + token * a.kv_stride + index * dim;
  const float* bias = is_q ? a.q_bias : is_k ? a.k_bias : a.v_bias;
  float squares = 0;
  for (int i = threadIdx.x; i < dim; i += kThreads) {
    head[i] = __ldcg(from + i) + (bias ? __ldg(bias + index * dim + i) : 0.0f);
    squares += head[i] * head[i];
  }
  const float* norm = is_q ? a.q_norm : is_k ? a.k_norm : nullptr;
  if (norm) {
    for (int x = 16; x > 0; x /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, x);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < kThreads / 32; ++w) total += sums[w];
    const float scale = 1.0f / sqrtf(total / static_cast<float>(dim) + a.eps);
    for (int i = threadIdx.x; i < dim; i += kThreads) head[i] *= scale * __ldg(norm + i);
  }
  __syncthreads();
  const int position = __ldcg(a.batch.positions + token);
  const int block = __ldcg(a.batch.block_table +
                           static_cast<int64_t>(__ldcg(a.batch.sequence + token)) * a.batch.max_blocks +
                           position / kKvBlock);
  const int64_t row =
      ((static_cast<int64_t>(block) * a.kv.kv_heads + index) * kKvBlock + position % kKvBlock) *
      a.kv.padded_dim;
  for (int i = threadIdx.x; i < dim; i += kThreads) {
    float value = head[i];
    if ((is_q || is_k) && i < a.rope_dim) {
      const int64_t at = static_cast<int64_t>(position) * half + i % half;
      const float cosine = __ldg(a.rope_cos + at), sine = __ldg(a.rope_sin + at);
      value = i < half ? head[i] * cosine - head[i + half] * sine : head[i] * cosine + head[i - half] * sine;
    }
    if (is_q)
      a.q_out[(static_cast<int64_t>(token) * a.heads + index) * dim + i] = value;
    else
      StoreKv(a.kv, is_k ? a.kv.k : a.kv.v, row + i, value);
  }
}

}  // namespace

cudaError_t LaunchFinishQkv(const FinishQkvArgs& args, cudaStream_t stream) {
  if (args.kv.head_dim > 512) return cudaErrorInvalidValue;
  return Launch(
      FinishKernel,
      dim3(static_cast<unsigned>(args.heads + 2 * args.kv.kv_heads), static_cast<unsigned>(args.batch.count)),
      dim3(kThreads), 0, stream, args);
}

}  // namespace celer::cuda
