// The router, top-k routing, and the weighted sum of the experts' results.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/llm/matmul/cuda/matvec/matvec_ptx.cuh"
#include "kernels/llm/moe/cuda/moe_choice.cuh"
#include "kernels/llm/moe/cuda/moe_cuda.h"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

constexpr int kRouteThreads = 256, kRouteWarps = kRouteThreads / 32;

// Four columns of a row. kFours: rows are whole fours; else the last of them may be fewer, and zeros follow.
template <bool kFours>
__device__ __forceinline__ float4 LoadFour(const float* row, int column, int columns) {
  if constexpr (kFours) return __ldcg(reinterpret_cast<const float4*>(row + column));
  const auto at = [&](int i) { return column + i < columns ? __ldcg(row + column + i) : 0.0f; };
  return make_float4(at(0), at(1), at(2), at(3));
}
template <bool kFours>
__device__ __forceinline__ void StoreFour(float* row, int column, int columns, const float4& four) {
  if constexpr (kFours) {
    *reinterpret_cast<float4*>(row + column) = four;
  } else {
    const float values[] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < columns) row[column + i] = values[i];
  }
}
__device__ __forceinline__ float SquaresOf(const float4& v) {
  return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
}

// Grid: (T tokens each, runs of experts); a warp takes one expert after the other.
template <int T, bool kFours>
__global__ void __launch_bounds__(kRouteThreads) RouterKernel(const __grid_constant__ MoeRouterArgs a) {
  constexpr int kWarpsOfRow = kRouteWarps / T;
  extern __shared__ __align__(16) float rows[];  // [T, hidden], under the norm's weights
  __shared__ float sums[T][kWarpsOfRow];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int first = blockIdx.x * T, count = min(T, a.tokens - first);
  LetNextStart();
  // Weights are on their way while the kernel in front ends.
  const auto fetch = [&](const float* row) {
    for (int i = lane * 32; i < a.hidden; i += 1024) matvec::PrefetchLine(row + i);
  };
  fetch(a.norm);
  const int first_expert = blockIdx.y * kRouteWarps + warp;
  if (first_expert < a.experts) fetch(a.router + static_cast<int64_t>(first_expert) * a.hidden);
  WaitForPrevious();
  {
    const int t = warp / kWarpsOfRow, part = warp % kWarpsOfRow;
    const float* x = a.x + static_cast<int64_t>(first + min(t, count - 1)) * a.hidden;
    float squares = 0;
#pragma unroll 8
    for (int i = (part * 32 + lane) * 4; i < a.hidden; i += kWarpsOfRow * 128) {
      const float4 v = LoadFour<kFours>(x, i, a.hidden), by = LoadFour<kFours>(a.norm, i, a.hidden);
      squares += SquaresOf(v);
      StoreFour<kFours>(rows + t * a.hidden, i, a.hidden,
                        make_float4(v.x * by.x, v.y * by.y, v.z * by.z, v.w * by.w));
    }
    squares = WarpSum(squares);
    if (lane == 0) sums[t][part] = squares;
  }
  __syncthreads();
  for (int e = blockIdx.y * kRouteWarps + warp; e < a.experts; e += gridDim.y * kRouteWarps) {
    const float* w = a.router + static_cast<int64_t>(e) * a.hidden;
    float dot[T] = {};
    if constexpr (kFours) {
#pragma unroll 8
      for (int i = lane * 4; i < a.hidden; i += 128) {
        const float4 f = __ldg(reinterpret_cast<const float4*>(w + i));
#pragma unroll
        for (int t = 0; t < T; ++t) {
          const float4 v = *reinterpret_cast<const float4*>(rows + t * a.hidden + i);
          dot[t] += (f.x * v.x + f.y * v.y) + (f.z * v.z + f.w * v.w);
        }
      }
    } else {
      for (int i = lane; i < a.hidden; i += 32)
#pragma unroll
        for (int t = 0; t < T; ++t) dot[t] += __ldg(w + i) * rows[t * a.hidden + i];
    }
#pragma unroll
    for (int t = 0; t < T; ++t) {
      dot[t] = WarpSum(dot[t]);
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kWarpsOfRow; ++i) squares += sums[t][i];
      const float scale = 1.0f / sqrtf(squares / static_cast<float>(a.hidden) + a.eps);
      if (lane == 0 && t < count) a.logits[static_cast<int64_t>(first + t) * a.experts + e] = dot[t] * scale;
    }
  }
}

// By one block: an exclusive prefix sum over its threads.
__device__ int SumInFront(int mine) {
  __shared__ int warps[kRouteWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int sum = mine;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, i);
    if (lane >= i) sum += other;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; ++i) sum += warps[i];
  __syncthreads();
  return sum - mine;
}

// By one block, once all tokens have their experts: a counting sort into slots and jobs. `count` and `begin`
// are [experts + shared] in shared memory. The order of an expert's slots does not matter to anything that is computed
// with them.
__device__ void MakeJobs(const MoeRouteArgs& a, int* count, int* begin) {
  const int pairs = a.tokens * a.top, experts = a.experts + a.shared, thread = threadIdx.x;
  for (int e = thread; e < experts; e += kRouteThreads) count[e] = 0;
  __syncthreads();
  // Of the first pairs of a thread: the expert, and which of its slots; the others are read again.
  constexpr int kKept = 4;
  int expert[kKept], place[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (const int p = thread + i * kRouteThreads; p < pairs) expert[i] = __ldcg(a.plan.expert + p);
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (thread + i * kRouteThreads < pairs) place[i] = atomicAdd(count + expert[i], 1);
  for (int p = thread + kKept * kRouteThreads; p < pairs; p += kRouteThreads)
    a.plan.slot[p] = atomicAdd(count + __ldcg(a.plan.expert + p), 1);
  __syncthreads();
  // Runs of experts per thread, then what the threads in front have.
  const int each = (experts + kRouteThreads - 1) / kRouteThreads;
  const int first = min(thread * each, experts), last = min(first + each, experts);
  int slots = 0, jobs = 0;
  for (int e = first; e < last; ++e) {
    slots += count[e];
    jobs += (count[e] + a.job_tokens - 1) / a.job_tokens;
  }
  int slot = SumInFront(slots), job = SumInFront(jobs);
  if (thread == kRouteThreads - 1) a.plan.counts[0] = job + jobs;
  for (int e = first; e < last; ++e) {
    begin[e] = slot;
    const int first_job = job, siblings = (count[e] + a.job_tokens - 1) / a.job_tokens;
    for (int i = 0; i < count[e]; i += a.job_tokens)
      a.plan.jobs[job++] = {e, slot + i, min(a.job_tokens, count[e] - i), first_job, siblings};
    slot += count[e];
  }
  __syncthreads();
  const auto put = [&](int p, int to) {
    a.plan.slot[p] = to;
    a.plan.row[to] = p / a.top;
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (const int p = thread + i * kRouteThreads; p < pairs) put(p, begin[expert[i]] + place[i]);
  for (int p = thread + kKept * kRouteThreads; p < pairs; p += kRouteThreads)
    put(p, begin[__ldcg(a.plan.expert + p)] + a.plan.slot[p]);
}

template <bool kFours>
__device__ __forceinline__ void StoreNormed(const MoeRouteArgs& a, int token, int column,
                                            const float4& four) {
  if (!a.normed_bf16)
    return StoreFour<kFours>(a.normed + static_cast<int64_t>(token) * a.hidden, column, a.hidden, four);
  auto* to = static_cast<__nv_bfloat16*>(a.normed_bf16) + static_cast<int64_t>(token) * a.bf16_width + column;
  *reinterpret_cast<uint2*>(to) =
      make_uint2(matvec::PackBf16(four.x, four.y), matvec::PackBf16(four.z, four.w));
}

// Grid: tokens. The block that is last makes the jobs.
template <bool kFours>
__global__ void __launch_bounds__(kRouteThreads) RouteKernel(const __grid_constant__ MoeRouteArgs a) {
  extern __shared__ float memory[];  // [2, experts + shared]
  __shared__ float sums[kRouteWarps];
  __shared__ bool last;
  const int token = blockIdx.x, thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  LetNextStart();
  WaitForPrevious();
  const float* x = a.x + static_cast<int64_t>(token) * a.hidden;
  constexpr int kKept = 2;  // fours of columns that stay in registers between the passes
  constexpr int kApart = kRouteThreads * 4;
  float4 kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (const int column = thread * 4 + i * kApart; column < a.hidden)
      kept[i] = LoadFour<kFours>(x, column, a.hidden);
  const int64_t first_logit =
      static_cast<int64_t>(token) * (a.logits_stride > 0 ? a.logits_stride : a.experts);
  for (int e = thread; e < a.experts; e += kRouteThreads)
    memory[e] = __ldcg(a.logits + first_logit + e) + (a.form.bias ? __ldg(a.form.bias + e) : 0.0f);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (thread * 4 + i * kApart < a.hidden) squares += SquaresOf(kept[i]);
  for (int column = thread * 4 + kKept * kApart; column < a.hidden; column += kApart)
    squares += SquaresOf(LoadFour<kFours>(x, column, a.hidden));
  squares = WarpSum(squares);
  if (lane == 0) sums[warp] = squares;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < kRouteWarps; ++i) total += sums[i];
  const float scale = 1.0f / sqrtf(total / static_cast<float>(a.hidden) + a.eps);
  const auto store = [&](int column, const float4& v) {
    const float4 by = LoadFour<kFours>(a.norm, column, a.hidden);
    StoreNormed<kFours>(
        a, token, column,
        make_float4(v.x * scale * by.x, v.y * scale * by.y, v.z * scale * by.z, v.w * scale * by.w));
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (const int column = thread * 4 + i * kApart; column < a.hidden) store(column, kept[i]);
  for (int column = thread * 4 + kKept * kApart; column < a.hidden; column += kApart)
    store(column, LoadFour<kFours>(x, column, a.hidden));
  for (int column = (a.hidden + 3) / 4 * 4 + thread * 4; column < a.bf16_width; column += kApart)
    StoreNormed<kFours>(a, token, column, make_float4(0, 0, 0, 0));
  if (warp == 0) {
    const int chosen = a.top - a.shared, pair = token * a.top;
    ChooseExperts<true>(a.form, memory, memory + a.experts, a.experts, chosen, lane, a.plan.expert + pair,
                        a.plan.weight + pair);
    AddShared(a.experts, a.shared, a.shared_gate ? a.logits + first_logit + a.experts : nullptr, lane,
              a.plan.expert + pair + chosen, a.plan.weight + pair + chosen);
  }
  __threadfence();
  __syncthreads();
  if (thread == 0) last = atomicAdd(a.plan.counts + 1, 1) == static_cast<int>(gridDim.x) - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (thread == 0) a.plan.counts[1] = 0;
  MakeJobs(a, reinterpret_cast<int*>(memory), reinterpret_cast<int*>(memory) + a.experts + a.shared);
}

// Grid: (parts of a row, tokens).
__global__ void CombineKernel(const __grid_constant__ MoeCombineArgs a) {
  LetNextStart();
  WaitForPrevious();
  const int token = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.hidden) return;
  const int64_t at = static_cast<int64_t>(token) * a.hidden + i;
  float sum = __ldcg(a.x + at);
  constexpr int kAtOnce = 8;  // experts whose values are on their way together
  for (int first = 0; first < a.top; first += kAtOnce) {
    float weight[kAtOnce], value[kAtOnce];
    int slot[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (first + k < a.top) {
        slot[k] = __ldcg(a.plan.slot + token * a.top + first + k);
        weight[k] = __ldcg(a.plan.weight + token * a.top + first + k);
      }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (first + k < a.top) value[k] = __ldcg(a.out + static_cast<int64_t>(slot[k]) * a.hidden + i);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)  // in the order of the CPU
      if (first + k < a.top) sum += weight[k] * value[k];
  }
  if (a.shared) {
    const float gate =
        a.shared_gate
            ? 1.0f /
                  (1.0f + expf(-__ldcg(a.shared_gate + static_cast<int64_t>(token) * a.shared_gate_stride)))
            : 1.0f;
    sum += gate * __ldcg(a.shared + at);
  }
  a.x[at] = sum;
}

}  // namespace

MoePlan MoePlan::In(std::byte* memory, int64_t tokens, int64_t top) {
  const int64_t pairs = tokens * top;
  MoePlan plan;
  plan.expert = reinterpret_cast<int32_t*>(memory);
  plan.weight = reinterpret_cast<float*>(plan.expert + pairs);
  plan.slot = plan.expert + 2 * pairs;
  plan.row = plan.expert + 3 * pairs;
  plan.jobs = reinterpret_cast<ExpertJob*>(plan.expert + 4 * pairs);
  plan.counts = reinterpret_cast<int32_t*>(plan.jobs + pairs);
  return plan;
}

cudaError_t LaunchMoeRouter(const MoeRouterArgs& args, cudaStream_t stream) {
  constexpr int kRoom = 200 << 10;
  const int64_t row_bytes = int64_t{args.hidden} * 4, room = std::min(kRoom, SharedLimit() - 2048);
  if (args.tokens < 1 || args.experts < 1 || row_bytes > room) return cudaErrorInvalidValue;
  const auto launch = [&]<int kTokens>() {
    const unsigned groups = static_cast<unsigned>((args.tokens + kTokens - 1) / kTokens);
    const unsigned runs = static_cast<unsigned>((args.experts + kRouteWarps - 1) / kRouteWarps);
    // With many tokens each block takes more experts, so that x is not read too often.
    const dim3 grid(groups, std::min(runs, std::max(1u, 512 / groups)));
    const int bytes = static_cast<int>(kTokens * row_bytes);
    const dim3 block(kRouteThreads);
    return args.hidden % 4 == 0
               ? LaunchLarge<RouterKernel<kTokens, true>, kRoom>(grid, block, bytes, stream, args)
               : LaunchLarge<RouterKernel<kTokens, false>, kRoom>(grid, block, bytes, stream, args);
  };
  // A token's logits do not depend on the others, as long as there are eight at most.
  if (args.tokens <= kMaxMatvecTokens || args.deterministic || 2 * row_bytes > room)
    return launch.operator()<1>();
  if (8 * row_bytes <= room) return launch.operator()<8>();
  if (4 * row_bytes <= room) return launch.operator()<4>();
  return launch.operator()<2>();
}

cudaError_t LaunchMoeRoute(const MoeRouteArgs& args, cudaStream_t stream) {
  const int chosen = args.top - args.shared;
  if (args.tokens < 1 || args.experts < 1 || args.shared < 0 || args.experts + args.shared > kMaxExperts ||
      chosen < 1 || chosen > std::min(args.experts, kMaxTopExperts) || args.job_tokens < 1 ||
      args.form.groups < 1 || args.form.groups > kMaxExpertGroups ||
      (args.normed_bf16 && (args.bf16_width % 4 != 0 || args.bf16_width < args.hidden)))
    return cudaErrorInvalidValue;
  return Launch(args.hidden % 4 == 0 ? RouteKernel<true> : RouteKernel<false>,
                dim3(static_cast<unsigned>(args.tokens)), dim3(kRouteThreads),
                static_cast<size_t>(args.experts + args.shared) * 8, stream, args);
}

cudaError_t LaunchMoeCombine(const MoeCombineArgs& args, cudaStream_t stream) {
  return Launch(CombineKernel,
                dim3(static_cast<unsigned>((args.hidden + 255) / 256), static_cast<unsigned>(args.tokens)),
                dim3(256), 0, stream, args);
}

}  // namespace celer::cuda
