// The kernel behind LaunchMoeStep, one instance per weight format: router, choice, gate and up, down, and the
// weighted sum of a few tokens' experts.
//
// Grid: persistent, one block per multiprocessor, all of them resident at once, the roles of matvec_cuda.cuh.
// There are three grid barriers, at counters in global memory: when the logits are written, when gate and up
// are multiplied, when down is. Every block chooses the experts for itself, which is faster than one more
// barrier. The weights of down fill the ring buffer while the others still finish gate and up.
#pragma once

#include "kernels/llm/moe/cuda/moe_choice.cuh"
#include "kernels/llm/moe/cuda/moe_product_cuda.cuh"

namespace celer::cuda::moe {

struct StepParams {
  ProductParams part[2];  // gate and up, down; with one ring
  MoeStepArgs a;
  int64_t prefetch[2];  // bytes of the shared experts' matrices that come to L2 before the others are known
  int job_tokens;
  int plan_offset;  // StepPlan in shared memory, behind the two products' slots
};

struct StepPlan {
  ProductParams part[2];  // read again and again: nearer than the kernel's parameters
  ExpertJob jobs[kMaxStepPairs];
  int32_t expert[kMaxStepPairs], slot[kMaxStepPairs];  // of a (token, rank) pair
  int32_t head[kMaxStepPairs];                         // whether a job begins with it
  float weight[kMaxStepPairs];
  int32_t job_count;
  uint64_t target;                // of the counters
  float scale[kMaxMatvecTokens];  // of the norm
  float dots[kMaxMatvecTokens][matvec::kWarps], squares[kMaxMatvecTokens][matvec::kWarps];
};

// Counters of arrivals are monotonic, one more for every block in every launch, so that nothing is cleared.
__device__ __forceinline__ void Arrive(uint64_t* counter) {
  asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(counter) : "memory");
}
// What a counter shows when all have arrived in this launch. Before this block arrives itself.
__device__ __forceinline__ uint64_t Target(const uint64_t* counter) {
  uint64_t count;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(count) : "l"(counter) : "memory");
  return (count / gridDim.x + 1) * gridDim.x;
}
__device__ __forceinline__ void AwaitAll(const uint64_t* counter, uint64_t target) {
  uint64_t count;
  do asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(count) : "l"(counter) : "memory");
  while (count < target);
}

// Four values of a token that a thread takes care of besides the products: it norms them at the beginning,
// and adds the experts' results to them at the end.
struct Quad {
  int token = -1;
  int64_t at = 0;  // in [tokens, hidden]
  int column = 0;

  __device__ __forceinline__ explicit Quad(const MoeStepArgs& a) {
    const int quads = a.hidden / 4, each = (quads + static_cast<int>(gridDim.x) - 1) / gridDim.x;
    const int t = threadIdx.x / each, i = static_cast<int>(blockIdx.x) * each + threadIdx.x % each;
    if (t >= a.tokens || i >= quads) return;
    token = t;
    column = i * 4;
    at = static_cast<int64_t>(t) * a.hidden + column;
  }
  __device__ __forceinline__ float4 Load(const float* from) const {
    return __ldcg(reinterpret_cast<const float4*>(from + at));
  }
};

// By the warps that multiply: the logits of this block's experts, and its part of the normed tokens.
__device__ __forceinline__ void RouterPart(const MoeStepArgs& a, StepPlan& plan, int warp, int lane) {
  constexpr int kAtOnce = 4;
  const int thread = threadIdx.x, grid = static_cast<int>(gridDim.x);
  int e = static_cast<int>(blockIdx.x);
  const Quad quad(a);
  const float4 x = quad.token < 0 ? float4() : quad.Load(a.x);  // on its way early
  do {                                                          // at least once: the sums of squares
    const float* router = a.router + static_cast<int64_t>(min(e, a.routed - 1)) * a.hidden;
    for (int first = 0; first < a.tokens; first += kAtOnce) {
      float dot[kAtOnce] = {}, squares[kAtOnce] = {};
      for (int col = thread * 4; col < a.hidden; col += matvec::kConsumers * 4) {
        const float4 w = __ldg(reinterpret_cast<const float4*>(router + col));
        const float4 n = __ldg(reinterpret_cast<const float4*>(a.norm + col));
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t) {
          if (first + t >= a.tokens) continue;
          const float4 v =
              __ldcg(reinterpret_cast<const float4*>(a.x + static_cast<int64_t>(first + t) * a.hidden + col));
          squares[t] += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
          dot[t] += (v.x * n.x * w.x + v.y * n.y * w.y) + (v.z * n.z * w.z + v.w * n.w * w.w);
        }
      }
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        if (first + t >= a.tokens) continue;
        dot[t] = WarpSum(dot[t]), squares[t] = WarpSum(squares[t]);
        if (lane == 0) plan.dots[first + t][warp] = dot[t], plan.squares[first + t][warp] = squares[t];
      }
    }
    matvec::ConsumerBarrier();
    if (thread < a.tokens) {
      float dot = 0, squares = 0;
#pragma unroll
      for (int i = 0; i < matvec::kWarps; ++i)
        dot += plan.dots[thread][i], squares += plan.squares[thread][i];
      const float scale = 1.0f / sqrtf(squares / static_cast<float>(a.hidden) + a.eps);
      plan.scale[thread] = scale;
      if (e < a.routed) a.logits[thread * a.routed + e] = dot * scale;
    }
    matvec::ConsumerBarrier();
    e += grid;
  } while (e < a.routed);
  if (quad.token < 0) return;
  const float scale = plan.scale[quad.token];
  const float4 n = __ldg(reinterpret_cast<const float4*>(a.norm + quad.column));
  *reinterpret_cast<float4*>(a.normed + quad.at) =
      make_float4(x.x * scale * n.x, x.y * scale * n.y, x.z * scale * n.z, x.w * scale * n.w);
}

// By one warp: this block's share of them.
__device__ __forceinline__ void PrefetchShared(const StepParams& f, int part, int lane) {
  constexpr int64_t kPiece = 4096;
  const ProductParams& e = f.part[part];
  const std::byte* const from = e.p.a.a.data + f.a.experts * e.data_stride;
  const int64_t all = f.prefetch[part], blocks = gridDim.x, each = (all / 16 + blocks - 1) / blocks * 16;
  const int64_t begin = each * blockIdx.x, end = min(begin + each, all);
  for (int64_t at = begin + lane * kPiece; at < end; at += 32 * kPiece)
    matvec::PrefetchBulk(from + at, static_cast<uint32_t>(min(kPiece, end - at)));
}

// By the warps that multiply, once all tokens have their experts: a counting sort of pairs by expert into
// slots, and jobs of up to job_tokens slots of one expert. `rows` are this block's own.
__device__ __forceinline__ void MakeStepJobs(const MoeStepArgs& a, int job_tokens, StepPlan& plan,
                                             int32_t* rows, int warp, int lane) {
  const int pairs = a.tokens * a.top;
  if (a.tokens == 1) {  // as they come
    if (warp > 0) return;
    if (lane < pairs) plan.jobs[lane] = {plan.expert[lane], lane, 1, 0, 0}, plan.slot[lane] = lane;
    if (lane == 0) plan.job_count = pairs;
    return;
  }
  matvec::ConsumerBarrier();
  // How many pairs there are that `is` says yes to.
  const auto count = [&](const auto& is) {
    int sum = 0;
    for (int first = 0; first < pairs; first += 32)
      sum += __popc(__ballot_sync(0xffffffffu, first + lane < pairs && is(first + lane)));
    return sum;
  };
  for (int p = warp; p < pairs; p += matvec::kWarps) {
    const int expert = plan.expert[p];
    const int rank = count([&](int q) { return q < p && plan.expert[q] == expert; });
    const int slot = rank + count([&](int q) { return plan.expert[q] < expert; });
    if (lane > 0) continue;
    plan.slot[p] = slot;
    plan.head[p] = rank % job_tokens == 0;
    rows[slot] = p / a.top;
  }
  matvec::ConsumerBarrier();
  for (int p = warp; p < pairs; p += matvec::kWarps) {
    if (!plan.head[p]) continue;
    const int expert = plan.expert[p], slot = plan.slot[p];
    const int job = count([&](int q) { return plan.head[q] && plan.slot[q] < slot; });
    const int left = count([&](int q) { return q >= p && plan.expert[q] == expert; });
    if (lane == 0) plan.jobs[job] = {expert, slot, min(left, job_tokens), 0, 0};
  }
  if (warp > 0) return;
  const int heads = count([&](int q) { return plan.head[q] != 0; });
  if (lane == 0) plan.job_count = heads;
}

// In the order of the CPU.
__device__ __forceinline__ void Combine(const MoeStepArgs& a, const StepPlan& plan) {
  const Quad quad(a);
  if (quad.token < 0) return;
  float4 sum = quad.Load(a.x);
  const auto add = [&](float by, const float4& v) {
    sum.x += by * v.x, sum.y += by * v.y, sum.z += by * v.z, sum.w += by * v.w;
  };
#pragma unroll 8
  for (int k = 0; k < a.top; ++k) {
    const int p = quad.token * a.top + k;
    add(plan.weight[p], __ldcg(reinterpret_cast<const float4*>(
                            a.out + static_cast<int64_t>(plan.slot[p]) * a.hidden + quad.column)));
  }
  if (a.shared) {
    const float gate = a.routed > a.experts
                           ? 1.0f / (1.0f + expf(-__ldcg(a.logits + quad.token * a.routed + a.experts)))
                           : 1.0f;
    add(gate, quad.Load(a.shared));
  }
  *reinterpret_cast<float4*>(a.x + quad.at) = sum;
}

// kScores: of a form that is not MoeForm::ByLogits(), apart because the others would need more registers beside it.
template <Format F, int NT, int S, bool kScores>
__global__ void __launch_bounds__(matvec::kThreads, 1) StepKernel(const __grid_constant__ StepParams f) {
  using namespace matvec;
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, thread = threadIdx.x;
  const MoeStepArgs& a = f.a;
  UnitParams* const slots = reinterpret_cast<UnitParams*>(memory + f.part[0].slot_offset);  // [2][kSlots]
  StepPlan& plan = *reinterpret_cast<StepPlan*>(memory + f.plan_offset);
  int32_t* const rows = a.rows + static_cast<int64_t>(blockIdx.x) * kMaxStepPairs;
  if (thread < a.hidden / 32) {  // lines of 128 bytes
    PrefetchLine(a.norm + thread * 32);
    if (static_cast<int>(blockIdx.x) < a.routed)
      PrefetchLine(a.router + static_cast<int64_t>(blockIdx.x) * a.hidden + thread * 32);
  }
  if (thread < (a.experts + 31) / 32) {
    if (a.form.bias) PrefetchLine(a.form.bias + thread * 32);
    if (a.form.choice_bias) PrefetchLine(a.form.choice_bias + thread * 32);
  }
  InitBarriers(f.part[0].p.stages, shared + f.part[0].p.barrier_offset);
  LetNextStart();
  if (warp < 2 * kSlots) CopyParams(slots + warp, f.part[warp / kSlots].p, lane);
  if (warp / 2 == kSlots) CopyParams(plan.part + warp % 2, f.part[warp % 2], lane);
  WaitForPrevious();

  // Until the experts are known, the ring is free.
  if (warp < kWarps) {
    if (thread == 0) plan.target = Target(a.arrived);
    RouterPart(a, plan, warp, lane);
    ConsumerBarrier();
    if (thread == 0) Arrive(a.arrived);
    // Behind the router's own loads, and by warps that choose nothing.
    if (f.prefetch[0] > 0 && warp / 2 == kMaxMatvecTokens / 2) PrefetchShared(f, warp % 2, lane);
    if (warp < a.tokens) {
      if (lane == 0) AwaitAll(a.arrived, plan.target);
      __syncwarp();
      float* const logits = reinterpret_cast<float*>(memory) + warp * a.experts;
      for (int e = lane; e < a.experts; e += 32)
        logits[e] = __ldcg(a.logits + warp * a.routed + e) + (a.form.bias ? __ldg(a.form.bias + e) : 0.0f);
      __syncwarp();
      const int chosen = a.top - a.shared_experts, pair = warp * a.top;
      ChooseExperts<kScores>(a.form, logits, logits + kMaxMatvecTokens * a.experts, a.experts, chosen, lane,
                             plan.expert + pair, plan.weight + pair);
      AddShared(a.experts, a.shared_experts,
                a.routed > a.experts ? a.logits + warp * a.routed + a.experts : nullptr, lane,
                plan.expert + pair + chosen, plan.weight + pair + chosen);
      __syncwarp();
    }
    MakeStepJobs(a, f.job_tokens, plan, rows, warp, lane);
  }
  __syncthreads();

  // The roles go through both products: one body each, which two would not leave registers enough for.
  const auto walk = [&](int part) {
    const Rows which = part == 1 ? Rows::kSlots : a.tokens == 1 ? Rows::kOne : Rows::kListed;
    return Walk<true>(plan.part[part], plan.jobs, plan.job_count, which, rows, lane);
  };
  int parity = 0, done = 0;
  if (warp == kProducer) {
#if CELER_HOPPER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // copies go where logits were
#endif
    Filling filling;
#pragma unroll 1
    for (int part = 0; part < 2; ++part)
      FillUnits<F>(walk(part), slots + part * kSlots, shared, lane, filling);
    return;
  }
  if (warp == kFinisher) {
    auto* places = reinterpret_cast<TokenPlace*>(memory + f.part[0].p.place_offset);
    if (lane < kMaxMatvecTokens) places[lane] = TokenPlace();
    __syncwarp();
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      FinishUnits<NT>(walk(part), slots + part * kSlots + 1, memory, lane, places, parity);
      __syncwarp();
      if (lane == 0) Arrive(a.arrived + 1 + part);
    }
    return;
  }
  RingPlace ring;
#pragma unroll 1
  for (int part = 0; part < 2; ++part)
    MultiplyUnits<F, NT, S>(walk(part), slots + part * kSlots + 2, memory, shared, warp, lane, ring, parity,
                            done, [&] {
                              if (part == 0) return;
                              if (thread == 0) AwaitAll(a.arrived + 1, plan.target);
                              ConsumerBarrier();
                            });
  if (thread == 0) AwaitAll(a.arrived + 2, plan.target);
  ConsumerBarrier();
  Combine(a, plan);
}

// Experts of f32 take the separate kernels of LaunchMoeRoute(), LaunchMoeProduct() and LaunchMoeCombine().
constexpr bool HasStep(Format format) {
  return format != Format::kF32;
}

template <Format F>
cudaError_t LaunchStep(const StepParams& f, int shared_bytes, cudaStream_t stream) {
  return matvec::WithShift(GroupShifts<F>(), f.part[0].p.group_shift, [&]<int S>() {
    const dim3 grid(static_cast<unsigned>(Multiprocessors())), block(matvec::kThreads);
    const auto launch = [&]<bool kScores>() {
      return f.job_tokens <= 4
                 ? LaunchLarge<StepKernel<F, 1, S, kScores>>(grid, block, shared_bytes, stream, f)
                 : LaunchLarge<StepKernel<F, 2, S, kScores>>(grid, block, shared_bytes, stream, f);
    };
    return f.a.form.ByLogits() ? launch.template operator()<false>() : launch.template operator()<true>();
  });
}
// LaunchStep(), or an error without HasStep(); compiled in one file per format: moe_format_cuda.cu.in.
template <Format F>
cudaError_t LaunchStepFormat(const StepParams& f, int shared_bytes, cudaStream_t stream);

}  // namespace celer::cuda::moe
