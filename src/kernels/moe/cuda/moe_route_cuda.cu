// The router, the routes, and the sum of what the experts made.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/moe/cuda/moe_choice.cuh"
#include "kernels/moe/cuda/moe_cuda.h"

namespace celer::cuda {
namespace {

constexpr int kRouteThreads = 256, kRouteWarps = kRouteThreads / 32;

// Grid: (T tokens each, runs of experts); a warp takes one expert after the other.
template <int T>
__global__ void __launch_bounds__(kRouteThreads) RouterKernel(const __grid_constant__ MoeRouterArgs a) {
  extern __shared__ __align__(16) float rows[];  // [T, hidden], under the norm's weights
  __shared__ float sums[T][kRouteWarps];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int first = blockIdx.x * T, count = min(T, a.tokens - first);
  LetNextStart();
  WaitForPrevious();
  for (int t = 0; t < T; ++t) {
    float squares = 0;
    for (int i = thread; i < a.hidden; i += kRouteThreads) {
      const float v = t < count ? __ldcg(a.x + static_cast<int64_t>(first + t) * a.hidden + i) : 0.0f;
      squares += v * v;
      rows[t * a.hidden + i] = v * __ldg(a.norm + i);
    }
    squares = WarpSum(squares);
    if (lane == 0) sums[t][warp] = squares;
  }
  __syncthreads();
  for (int e = blockIdx.y * kRouteWarps + warp; e < a.experts; e += gridDim.y * kRouteWarps) {
    const float* w = a.router + static_cast<int64_t>(e) * a.hidden;
    float dot[T] = {};
    if (a.hidden % 4 == 0) {
#pragma unroll 4
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
      for (int i = 0; i < kRouteWarps; ++i) squares += sums[t][i];
      const float scale = 1.0f / sqrtf(squares / static_cast<float>(a.hidden) + a.eps);
      if (lane == 0 && t < count) a.logits[static_cast<int64_t>(first + t) * a.experts + e] = dot[t] * scale;
    }
  }
}

// By one block: the sum of what the threads in front of this one have.
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

// By one block, once all tokens have their experts: slots and jobs. `count` and `begin` are [experts] in
// shared memory. The order of an expert's slots does not matter to anything that is computed with them.
__device__ void MakeJobs(const MoeRouteArgs& a, int* count, int* begin) {
  const int pairs = a.tokens * a.top, thread = threadIdx.x;
  for (int e = thread; e < a.experts; e += kRouteThreads) count[e] = 0;
  __syncthreads();
  for (int p = thread; p < pairs; p += kRouteThreads)
    a.plan.slot[p] = atomicAdd(count + __ldcg(a.plan.expert + p), 1);
  __syncthreads();
  // Runs of experts per thread, then what the threads in front have.
  const int each = (a.experts + kRouteThreads - 1) / kRouteThreads;
  const int first = min(thread * each, a.experts), last = min(first + each, a.experts);
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
  for (int p = thread; p < pairs; p += kRouteThreads) {
    const int to = begin[__ldcg(a.plan.expert + p)] + a.plan.slot[p];
    a.plan.slot[p] = to;
    a.plan.row[to] = p / a.top;
  }
}

// Grid: tokens. The block that is last makes the jobs.
__global__ void __launch_bounds__(kRouteThreads) RouteKernel(const __grid_constant__ MoeRouteArgs a) {
  extern __shared__ float memory[];  // [2, experts]
  __shared__ float sums[kRouteWarps];
  __shared__ bool last;
  const int token = blockIdx.x, thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  LetNextStart();
  WaitForPrevious();
  for (int e = thread; e < a.experts; e += kRouteThreads)
    memory[e] = __ldcg(a.logits +
                       static_cast<int64_t>(token) * (a.logits_stride > 0 ? a.logits_stride : a.experts) + e);
  const float* x = a.x + static_cast<int64_t>(token) * a.hidden;
  float squares = 0;
  for (int i = thread; i < a.hidden; i += kRouteThreads) {
    const float v = __ldcg(x + i);
    squares += v * v;
  }
  squares = WarpSum(squares);
  if (lane == 0) sums[warp] = squares;
  __syncthreads();
  if (warp == 0) {
    ChooseExperts(memory, a.experts, a.top, a.normalize, lane, a.plan.expert + token * a.top,
                  a.plan.weight + token * a.top);
  }
  float total = 0;
#pragma unroll
  for (int i = 0; i < kRouteWarps; ++i) total += sums[i];
  const float scale = 1.0f / sqrtf(total / static_cast<float>(a.hidden) + a.eps);
  float* normed = a.normed + static_cast<int64_t>(token) * a.hidden;
  for (int i = thread; i < a.hidden; i += kRouteThreads)
    normed[i] = __ldcg(x + i) * scale * __ldg(a.norm + i);
  __threadfence();
  __syncthreads();
  if (thread == 0) last = atomicAdd(a.plan.counts + 1, 1) == static_cast<int>(gridDim.x) - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (thread == 0) a.plan.counts[1] = 0;
  MakeJobs(a, reinterpret_cast<int*>(memory), reinterpret_cast<int*>(memory) + a.experts);
}

// Grid: (parts of a row, tokens).
__global__ void CombineKernel(const __grid_constant__ MoeCombineArgs a) {
  LetNextStart();
  WaitForPrevious();
  const int token = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.hidden) return;
  const int64_t at = static_cast<int64_t>(token) * a.hidden + i;
  float sum = __ldcg(a.x + at);
  for (int k = 0; k < a.top; ++k) {  // in the order of the CPU
    const int p = token * a.top + k;
    sum += __ldcg(a.plan.weight + p) *
           __ldcg(a.out + static_cast<int64_t>(__ldcg(a.plan.slot + p)) * a.hidden + i);
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
  const int64_t row_bytes = int64_t{args.hidden} * 4;
  if (args.tokens < 1 || args.experts < 1 || row_bytes > kRoom) return cudaErrorInvalidValue;
  const auto launch = [&]<int kTokens>() {
    const unsigned groups = static_cast<unsigned>((args.tokens + kTokens - 1) / kTokens);
    const unsigned runs = static_cast<unsigned>((args.experts + kRouteWarps - 1) / kRouteWarps);
    // With many tokens each block takes more experts, so that x is not read too often.
    const dim3 grid(groups, std::min(runs, std::max(1u, 512 / groups)));
    return LaunchLarge<RouterKernel<kTokens>, kRoom>(grid, dim3(kRouteThreads),
                                                     static_cast<int>(kTokens * row_bytes), stream, args);
  };
  // A token's logits do not depend on the others, as long as there are eight at most.
  if (args.tokens <= kMaxMatvecTokens || 2 * row_bytes > kRoom) return launch.operator()<1>();
  if (8 * row_bytes <= kRoom) return launch.operator()<8>();
  if (4 * row_bytes <= kRoom) return launch.operator()<4>();
  return launch.operator()<2>();
}

cudaError_t LaunchMoeRoute(const MoeRouteArgs& args, cudaStream_t stream) {
  if (args.tokens < 1 || args.experts < 1 || args.experts > kMaxExperts || args.top < 1 ||
      args.top > std::min(args.experts, kMaxTopExperts) || args.job_tokens < 1)
    return cudaErrorInvalidValue;
  return Launch(RouteKernel, dim3(static_cast<unsigned>(args.tokens)), dim3(kRouteThreads),
                static_cast<size_t>(args.experts) * 8, stream, args);
}

cudaError_t LaunchMoeCombine(const MoeCombineArgs& args, cudaStream_t stream) {
  return Launch(CombineKernel,
                dim3(static_cast<unsigned>((args.hidden + 255) / 256), static_cast<unsigned>(args.tokens)),
                dim3(256), 0, stream, args);
}

}  // namespace celer::cuda
