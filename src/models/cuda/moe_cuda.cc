// Layers with experts: their part of the forward pass.
#include <algorithm>

#include "kernels/llm/matmul/cuda/gemm/gemm_cuda.h"
#include "kernels/llm/moe/cuda/moe_cuda.h"
#include "models/cuda/operators.h"

namespace celer {
namespace {

cuda::MoeForm FormOf(const MoeConfig& moe, const DeviceLayer& w) {
  return {.sigmoid = moe.score == RouterScore::kSigmoid,
          .group_by_best_two = moe.group_by_best_two,
          .normalize = moe.normalize_top,
          .normalize_floor = moe.normalize_floor,
          .bias = w.router_bias,
          .choice_bias = w.choice_bias,
          .groups = static_cast<int>(moe.groups),
          .groups_used = static_cast<int>(moe.groups_used),
          .normalize_eps = moe.normalize_eps,
          .scale = moe.routed_scale};
}

// Experts of a token, with the shared ones.
int TopOf(const MoeConfig& moe, const DeviceLayer& w) {
  return static_cast<int>(moe.experts_per_token) + w.shared_experts;
}

}  // namespace

// Only experts that tokens were routed to are read. A few tokens take one kernel; more are
// multiplied as bf16, all tokens of an expert together; experts of f32 have the products of a decode step.
void CudaOperators::Moe(const DeviceLayer& w, int count) {
  const DecoderConfig& c = config();
  const int experts = static_cast<int>(c.moe.experts), top = TopOf(c.moe, w),
            hidden = static_cast<int>(c.hidden), routed = experts + (w.shared_gate ? 1 : 0);
  const auto chosen =
      ChooseMoe({.tokens = count,
                 .deterministic = shape.deterministic,
                 // It adds to x.
                 .moe_step = AddsToX() && !AdaptsExperts() &&
                             cuda::MoeStepRuns(w.expert_gate_up, w.expert_down, experts, top, hidden),
                 .moe_grouped =
                     memory.moe_x_bf16 && cuda::MoeGroupedRuns(w.expert_gate_up.first, w.expert_down.first)});
  if (!chosen) return Check(Status(chosen.error()));
  if (*chosen == MoeStrategy::kStep) return MoeStep(w, count);
  const bool grouped = *chosen == MoeStrategy::kGrouped;
  const int job_tokens = grouped ? std::min(count, cuda::kGroupedTokens)
                                 : cuda::MoeJobTokens(w.expert_gate_up, w.expert_down, count);
  const cuda::MoePlan plan = cuda::MoePlan::In(memory.moe_plan, shape.max_tokens,
                                               c.moe.experts_per_token + CudaModel::SharedExperts(c.moe));
  const DeviceMatrix& gate_up = w.expert_gate_up.first;
  Check(cuda::LaunchMoeRouter({.x = memory.x,
                               .norm = w.ffn_norm,
                               .eps = c.norm_eps,
                               .router = w.router,
                               .tokens = count,
                               .experts = routed,
                               .hidden = hidden,
                               .deterministic = shape.deterministic,
                               .logits = memory.router_logits},
                              stream.get()));
  if (AdaptsExperts()) AdaptRouter(w, count);
  Check(cuda::LaunchMoeRoute({.logits = memory.router_logits,
                              .logits_stride = routed,
                              .tokens = count,
                              .experts = experts,
                              .top = top,
                              .shared = w.shared_experts,
                              .shared_gate = w.shared_gate && w.shared_experts > 0,
                              .form = FormOf(c.moe, w),
                              .job_tokens = job_tokens,
                              .x = memory.x,
                              .norm = w.ffn_norm,
                              .eps = c.norm_eps,
                              .hidden = hidden,
                              .normed = memory.moe_x,
                              .normed_bf16 = grouped ? memory.moe_x_bf16 : nullptr,
                              .bf16_width = grouped ? gate_up.padded : 0,
                              .plan = plan},
                             stream.get()));
  if (AdaptsExperts())
    AdaptedExperts(w, grouped, job_tokens, count, plan);
  else
    grouped ? MoeGrouped(w, job_tokens, plan) : MoeJobs(w, job_tokens, plan);
  if (w.down) AdaptsExperts() ? AdaptedSharedExpert(w, count) : SharedExpert(w, count);
  ClearSum(Part::kDown, count);
  Check(cuda::LaunchMoeCombine({.out = memory.moe_out,
                                .tokens = count,
                                .top = top,
                                .hidden = hidden,
                                .plan = plan,
                                .shared = w.down ? memory.shared_out : nullptr,
                                .shared_gate = w.shared_gate ? memory.router_logits + experts : nullptr,
                                .shared_gate_stride = routed,
                                .x = Sum(Part::kDown)},
                               stream.get()));
  JoinRanks(Part::kDown, count);
}

// All of it in one kernel.
void CudaOperators::MoeStep(const DeviceLayer& w, int count) {
  const DecoderConfig& c = config();
  const int experts = static_cast<int>(c.moe.experts);
  if (w.down) SharedExpert(w, count);
  cuda::MoeStepArgs args{.norm = w.ffn_norm,
                         .eps = c.norm_eps,
                         .router = w.router,
                         .tokens = count,
                         .hidden = static_cast<int>(c.hidden),
                         .experts = experts,
                         .routed = experts + (w.shared_gate ? 1 : 0),
                         .top = TopOf(c.moe, w),
                         .shared_experts = w.shared_experts,
                         .form = FormOf(c.moe, w),
                         .activation = activation(),
                         .swiglu_limit = c.swiglu_limit,
                         .shared = w.down ? memory.shared_out : nullptr,
                         .x = memory.x,
                         .logits = memory.router_logits,
                         .normed = memory.moe_x,
                         .mid = memory.moe_mid,
                         .out = memory.moe_out};
  cuda::MoeStepMemory::In(memory.moe_step, &args);
  Check(cuda::LaunchMoeStep(args, w.expert_gate_up, w.expert_down, stream.get()));
}

void CudaOperators::MoeGrouped(const DeviceLayer& w, int job_tokens, const cuda::MoePlan& plan) {
  cuda::MoeGroupedArgs product{.w = w.expert_gate_up,
                               .gate_up = true,
                               .x = memory.moe_x_bf16,
                               .out = memory.moe_mid_bf16,
                               .out_stride = w.expert_down.first.padded,
                               .activation = activation(),
                               .swiglu_limit = config().swiglu_limit,
                               .job_tokens = job_tokens,
                               .plan = plan};
  Check(cuda::LaunchMoeGrouped(product, stream.get()));
  product.w = w.expert_down;
  product.gate_up = false;
  product.x = memory.moe_mid_bf16;
  product.out = memory.moe_out;
  product.out_stride = config().hidden;
  Check(cuda::LaunchMoeGrouped(product, stream.get()));
}

void CudaOperators::MoeJobs(const DeviceLayer& w, int job_tokens, const cuda::MoePlan& plan) {
  cuda::MoeProductArgs product{.w = w.expert_gate_up,
                               .gate_up = true,
                               .x = memory.moe_x,
                               .out = memory.moe_mid,
                               .activation = activation(),
                               .swiglu_limit = config().swiglu_limit,
                               .top = TopOf(config().moe, w),
                               .job_tokens = job_tokens,
                               .plan = plan};
  Check(cuda::LaunchMoeProduct(product, stream.get()));
  product.w = w.expert_down;
  product.gate_up = false;
  product.x = memory.moe_mid;
  product.out = memory.moe_out;
  Check(cuda::LaunchMoeProduct(product, stream.get()));
}

bool CudaOperators::GroupsSharedExpert(const DeviceLayer& w, int count) {
  const auto chosen =
      ChooseSharedExpert({.tokens = count,
                          .deterministic = shape.deterministic,
                          .shared_grouped = memory.shared_mid_bf16 && SameForm(w.gate, w.up) &&
                                            cuda::MoeGroupedRuns(w.gate, w.down)});
  if (!chosen) Check(Status(chosen.error()));
  return chosen && *chosen == SharedExpertStrategy::kGrouped;
}

// Of all tokens: a mixture of one expert, if there are many.
void CudaOperators::SharedExpert(const DeviceLayer& w, int count) {
  if (!GroupsSharedExpert(w, count)) {
    GateUpByMatvec(w, count);
    return Multiply({.a = &w.down,
                     .x = memory.mid,
                     .x_stride = w.gate.rows,
                     .out = memory.shared_out,
                     .out_stride = config().hidden},
                    count);
  }
  Check(cuda::LaunchToBf16(memory.x, count, static_cast<int>(config().hidden), w.gate.padded, w.ffn_norm,
                           config().norm_eps, memory.moe_x_bf16, stream.get()));
  cuda::MoeGroupedArgs product{.w = {.first = w.gate, .up = w.up},
                               .gate_up = true,
                               .x = memory.moe_x_bf16,
                               .out = memory.shared_mid_bf16,
                               .out_stride = w.down.padded,
                               .activation = activation(),
                               .swiglu_limit = config().swiglu_limit,
                               .plan = {},
                               .tokens = count};
  Check(cuda::LaunchMoeGrouped(product, stream.get()));
  product.w = {.first = w.down, .up = {}};
  product.gate_up = false;
  product.x = memory.shared_mid_bf16;
  product.out = memory.shared_out;
  product.out_stride = config().hidden;
  Check(cuda::LaunchMoeGrouped(product, stream.get()));
}

}  // namespace celer
