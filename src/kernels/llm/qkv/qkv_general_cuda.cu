#include "kernels/llm/qkv/qkv_general_cuda.h"

#include "kernels/llm/qkv/store_row.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

constexpr int kWarps = 4;  // each finishes one head
constexpr int kMaxHeadDim = 512;

// Where one head of q, k or v comes from.
struct Head {
  int part;   // 0 q, 1 k, 2 v
  int index;  // among those of its part
  const float* from;
  const float* bias;
};

__device__ __forceinline__ Head HeadOf(const FinishQkvGeneralArgs& g, int token, int which) {
  const FinishQkvArgs& a = g.base;
  const int dim = a.kv.head_dim, kv_heads = a.kv.kv_heads;
  Head out;
  out.part = which < a.heads ? 0 : which < a.heads + kv_heads ? 1 : 2;
  out.index = out.part == 0 ? which : out.part == 1 ? which - a.heads : which - a.heads - kv_heads;
  const int apart = out.part == 0 && g.q_head_stride > 0 ? g.q_head_stride : dim;
  const void* rows = out.part == 0 ? a.q : out.part == 1 ? a.k : a.v;
  out.from = static_cast<const float*>(rows) + token * (out.part == 0 ? a.q_stride : a.kv_stride) +
             static_cast<int64_t>(out.index) * apart;
  const float* bias = out.part == 0 ? a.q_bias : out.part == 1 ? a.k_bias : a.v_bias;
  out.bias = bias ? bias + static_cast<int64_t>(out.index) * apart : nullptr;
  return out;
}

__device__ __forceinline__ float WarpSum(float value) {
  for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}

__device__ __forceinline__ void Prefetch(const float* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

struct Moments {
  float mean, scale;  // normed = (value - mean) * scale
};

// Of `count` values, value(i), by the warps whose sums `sum` adds up.
template <class Value, class Sum>
__device__ __forceinline__ Moments MomentsOf(int count, int first, int step, bool layer, float eps,
                                             const Value& value, const Sum& sum) {
  float mean = 0;
  if (layer) {
    for (int i = first; i < count; i += step) mean += value(i);
    mean = sum(mean) / static_cast<float>(count);
  }
  float squares = 0;
  for (int i = first; i < count; i += step) {
    const float apart = value(i) - mean;
    squares += apart * apart;
  }
  const float total = sum(squares);
  return {mean, 1.0f / sqrtf(total / static_cast<float>(count) + eps) + ZeroOrNan(total)};
}

// Of all heads of q or k of a token, by the whole block.
__device__ __forceinline__ Moments RowMoments(const FinishQkvGeneralArgs& g, int token, int part) {
  __shared__ float sums[kWarps];
  const FinishQkvArgs& a = g.base;
  const int dim = a.kv.head_dim, heads = part == 0 ? a.heads : a.kv.kv_heads;
  const auto value = [&](int i) {
    const Head head = HeadOf(g, token, (part == 0 ? 0 : a.heads) + i / dim);
    return __ldcg(head.from + i % dim) + (head.bias ? __ldg(head.bias + i % dim) : 0.0f);
  };
  const auto sum = [&](float mine) {
    mine = WarpSum(mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
    __syncthreads();
    float total = 0;
    for (float each : sums) total += each;
    return total;
  };
  return MomentsOf(heads * dim, static_cast<int>(threadIdx.x), kWarps * 32, g.layer_norm, a.eps, value, sum);
}

// Grid: (heads of q, k and v in fours, tokens).
__global__ void __launch_bounds__(kWarps * 32) FinishKernel(const __grid_constant__ FinishQkvGeneralArgs g) {
  LetNextStart();
  __shared__ float heads[kWarps][2][kMaxHeadDim];
  const FinishQkvArgs& a = g.base;
  const int token = blockIdx.y, dim = a.kv.head_dim, half = a.rope_dim / 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float *head = heads[warp][0], *row = heads[warp][1];
  const int which = blockIdx.x * kWarps + warp, all = a.heads + 2 * a.kv.kv_heads;
  const Head from = HeadOf(g, token, min(which, all - 1));
  const int64_t norm_at = g.row_norm || g.own_norms ? static_cast<int64_t>(from.index) * dim : 0;
  const float* norm = from.part == 0 ? a.q_norm : from.part == 1 ? a.k_norm : nullptr;
  const float* norm_bias = from.part == 0 ? g.q_norm_bias : g.k_norm_bias;
  // While the kernel in front ends.
  if (norm && lane * 32 < dim) Prefetch(norm + norm_at + lane * 32);
  if (from.bias && lane * 32 < dim) Prefetch(from.bias + lane * 32);
  WaitForPrevious();
  Moments of_rows[2] = {};
  if (g.row_norm)
    for (int part = 0; part < 2; ++part)
      if (part == 0 ? a.q_norm : a.k_norm) of_rows[part] = RowMoments(g, token, part);
  if (which >= all) return;
  for (int i = lane; i < dim; i += 32)
    head[i] = __ldcg(from.from + i) + (from.bias ? __ldg(from.bias + i) : 0.0f);
  const int position = __ldcg(a.batch.positions + token);
  const int64_t sequence = __ldcg(a.batch.sequence + token);
  const int64_t block =
      from.part > 0 ? __ldcg(a.batch.block_table + sequence * a.batch.max_blocks + position / kKvBlock) : 0;
  __syncwarp();
  const auto apply_norm = [&](float* values) {
    const Moments by =
        g.row_norm ? of_rows[from.part]
                   : MomentsOf(
                         dim, lane, 32, g.layer_norm, a.eps, [&](int i) { return values[i]; }, WarpSum);
    for (int i = lane; i < dim; i += 32)
      values[i] = (values[i] - by.mean) * by.scale * __ldg(norm + norm_at + i) +
                  (norm_bias ? __ldg(norm_bias + norm_at + i) : 0.0f);
    __syncwarp();
  };
  if (norm && !g.norm_after_rope) apply_norm(head);
  const int64_t angles = static_cast<int64_t>(position) * half;
  for (int i = lane; i < dim; i += 32) {
    float value = head[i];
    if (from.part < 2 && i < a.rope_dim) {
      const int pair = i < half ? i : i - half;
      const float cosine = __ldg(a.rope_cos + angles + pair), sine = __ldg(a.rope_sin + angles + pair);
      value = i < half ? value * cosine - head[i + half] * sine : value * cosine + head[pair] * sine;
    }
    row[i] = value;
  }
  __syncwarp();
  if (norm && g.norm_after_rope) apply_norm(row);
  if (from.part == 0) {
    const float scale = g.q_scale ? __ldg(g.q_scale + position) : 1.0f;
    const int64_t to = (static_cast<int64_t>(token) * a.heads + from.index) * dim;
    for (int i = lane; i < dim; i += 32) {
      const float value = row[i] * scale;
      if (!a.narrow_q_out)
        a.q_out[to + i] = value;
      else if (a.kv.dtype == DType::kBf16)
        static_cast<__nv_bfloat16*>(a.narrow_q_out)[to + i] = __float2bfloat16(value);
      else
        static_cast<__half*>(a.narrow_q_out)[to + i] = __float2half_rn(value);
    }
    return;
  }
  StoreRow(a.kv, from.part == 1 ? a.kv.k : a.kv.v, block, from.index, position % kKvBlock, row, lane);
}

}  // namespace

cudaError_t LaunchFinishQkvGeneral(const FinishQkvGeneralArgs& args, cudaStream_t stream) {
  if (args.base.kv.head_dim > kMaxHeadDim) return cudaErrorInvalidValue;
  const int all = args.base.heads + 2 * args.base.kv.kv_heads;
  return Launch(
      FinishKernel,
      dim3(static_cast<unsigned>((all + kWarps - 1) / kWarps), static_cast<unsigned>(args.base.batch.count)),
      dim3(kWarps * 32), 0, stream, args);
}

}  // namespace celer::cuda
