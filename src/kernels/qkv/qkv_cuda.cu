#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/qkv/qkv_cuda.h"

namespace celer::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kHeadsPerWarp = 4;
constexpr int kMaxHeadDim = 512;

// A row of one head, by a warp; `part` is kv.k or kv.v. As StoreKvRow() in kernels/kv_row.h.
__device__ __forceinline__ void StoreRow(const DeviceKv& kv, std::byte* part, int64_t block, int head,
                                         int slot, const float* row, int lane) {
  std::byte* to = part + kv.HeadOffset(block, head) + slot * kv.row_bytes();
  if (kv.dtype != DType::kI8) {
    for (int i = lane; i < kv.head_dim; i += 32) {
      if (kv.dtype == DType::kBf16)
        reinterpret_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16(row[i]);
      else if (kv.dtype == DType::kF16)
        reinterpret_cast<__half*>(to)[i] = __float2half_rn(row[i]);
      else
        reinterpret_cast<__nv_fp8_storage_t*>(to)[i] =
            __nv_cvt_float_to_fp8(row[i], __NV_SATFINITE, __NV_E4M3);
    }
    return;
  }
  float top = 0;
  for (int i = lane; i < kv.head_dim; i += 32) top = fmaxf(top, fabsf(row[i]));
  for (int x = 16; x > 0; x /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, x));
  // 127 / top may be infinite for a subnormal top: nothing but zeros is left of such a row.
  const float inverse = top > 0 ? 127 / top : 0;
  for (int i = lane; i < kv.head_dim; i += 32)
    reinterpret_cast<int8_t*>(to)[i] =
        isfinite(inverse) ? static_cast<int8_t>(__float2int_rn(row[i] * inverse)) : int8_t{0};
  if (lane == 0)
    reinterpret_cast<float*>(part + kv.HeadOffset(block, head) + kKvBlock * kv.row_bytes())[slot] = top / 127;
}

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
    float* to = is_q ? a.q_out + (static_cast<int64_t>(token) * a.heads + index) * dim : row;
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
    if (!is_q) StoreRow(a.kv, is_k ? a.kv.k : a.kv.v, block, index, position % kKvBlock, row, lane);
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
