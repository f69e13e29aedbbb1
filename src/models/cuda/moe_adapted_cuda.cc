// Layers with experts whose products LoRA adapters change: gate and up apart from their activation, and rows that are
// slots, sorted by expert.
#include "kernels/llm/low_rank/low_rank_experts_cuda.h"
#include "kernels/llm/matmul/cuda/gemm/gemm_cuda.h"
#include "kernels/llm/moe/cuda/moe_cuda.h"
#include "models/cuda/operators.h"

namespace celer {
namespace {

// One of the matrices, without its bias: that comes behind the terms.
cuda::ExpertMatrices Alone(cuda::ExpertMatrices w, const DeviceMatrix& matrix) {
  w.first = matrix;
  w.up = {};
  w.first_bias = w.up_bias = nullptr;
  return w;
}

}  // namespace

void CudaOperators::AdaptRouter(const DeviceLayer& w, int count) {
  constexpr LoraPart kParts[] = {LoraPart::kRouter, LoraPart::kSharedWeight};
  const int experts = static_cast<int>(config().moe.experts);
  lora->Add({.parts = std::span(kParts).first(w.shared_gate ? 2 : 1),
             .layer = LayerOf(w),
             .x = memory.x,
             .cols = static_cast<int>(config().hidden),
             .norm = w.ffn_norm,
             .eps = config().norm_eps,
             .outs = {{{experts, memory.router_logits}, {1, memory.router_logits + experts}}},
             .stride = experts + (w.shared_gate ? 1 : 0)},
            count);
}

// `tokens`: 0, or how many a single expert has, which are their own slots.
void CudaOperators::ExpertProduct(const cuda::ExpertMatrices& w, const std::byte* x, float* out, bool grouped,
                                  int job_tokens, const cuda::MoePlan& plan, int tokens) {
  if (grouped)
    return Check(cuda::LaunchMoeGrouped({.w = w,
                                         .x = x,
                                         .out = out,
                                         .out_stride = w.first.rows,
                                         .job_tokens = tokens > 0 ? cuda::kGroupedTokens : job_tokens,
                                         .plan = plan,
                                         .tokens = tokens},
                                        stream.get()));
  Check(cuda::LaunchMoeProduct({.w = w,
                                .x = reinterpret_cast<const float*>(x),
                                .out = out,
                                .top = static_cast<int>(config().moe.experts_per_token),
                                .job_tokens = job_tokens,
                                .plan = plan},
                               stream.get()));
}

void CudaOperators::AdaptedExperts(const DeviceLayer& w, bool grouped, int job_tokens, int count,
                                   const cuda::MoePlan& plan) {
  constexpr LoraPart kGateUp[] = {LoraPart::kExpertUp, LoraPart::kExpertGate},
                     kDown[] = {LoraPart::kExpertDown};
  const DecoderConfig& c = config();
  const cuda::ExpertMatrices &in = w.expert_gate_up, &down = w.expert_down;
  const int slots = count * static_cast<int>(c.moe.experts_per_token + w.shared_experts),
            width = in.first.rows, hidden = static_cast<int>(c.hidden);
  lora->Route(plan, slots);
  const CudaLora::Product gate_up{
      .parts = kGateUp,
      .layer = LayerOf(w),
      .x = memory.x,
      .x_rows = plan.row,
      .cols = hidden,
      .norm = w.ffn_norm,
      .eps = c.norm_eps,
      .outs = {{{.rows = width, .product = memory.moe_up, .bias = in.up_bias},
                {.rows = width, .product = memory.moe_mid, .bias = in.first_bias}}},
      .stride = width,
      .slots = true};
  lora->Shrink(gate_up, slots);
  // What the products read of each slot lies where down's results will.
  auto* const x = reinterpret_cast<std::byte*>(memory.moe_out);
  Check(cuda::LaunchGatherRows(grouped ? static_cast<const void*>(memory.moe_x_bf16) : memory.moe_x, plan.row,
                               slots, grouped ? int64_t{2} * in.first.padded : int64_t{4} * hidden, x,
                               stream.get()));
  ExpertProduct(Alone(in, in.first), x, memory.moe_mid, grouped, job_tokens, plan);
  ExpertProduct(Alone(in, in.up), x, memory.moe_up, grouped, job_tokens, plan);
  lora->Expand(gate_up, slots);
  Check(cuda::LaunchLowRankActivateSlots({.gate = memory.moe_mid,
                                          .up = memory.moe_up,
                                          .count = slots,
                                          .cols = width,
                                          .activation = activation(),
                                          .limit = c.swiglu_limit,
                                          .out = memory.moe_mid,
                                          .out_bf16 = grouped ? memory.moe_mid_bf16 : nullptr,
                                          .bf16_stride = down.first.padded},
                                         stream.get()));
  const CudaLora::Product out{
      .parts = kDown,
      .layer = LayerOf(w),
      .x = memory.moe_mid,
      .cols = width,
      .outs = {{{.rows = hidden, .product = memory.moe_out, .bias = down.first_bias}}},
      .stride = hidden,
      .slots = true};
  lora->Shrink(out, slots);
  ExpertProduct(Alone(down, down.first),
                grouped ? memory.moe_mid_bf16 : reinterpret_cast<const std::byte*>(memory.moe_mid),
                memory.moe_out, grouped, job_tokens, plan);
  lora->Expand(out, slots);
}

void CudaOperators::AdaptedSharedExpert(const DeviceLayer& w, int count) {
  constexpr LoraPart kGateUp[] = {LoraPart::kSharedUp, LoraPart::kSharedGate},
                     kDown[] = {LoraPart::kSharedDown};
  const DecoderConfig& c = config();
  const bool grouped = GroupsSharedExpert(w, count);
  const int hidden = static_cast<int>(c.hidden), width = w.gate.rows;
  const auto multiply = [&](const DeviceMatrix& m, const float* x, const float* norm, const std::byte* bf16,
                            float* out) {
    if (grouped) return ExpertProduct({.first = m, .up = {}}, bf16, out, true, 0, {}, count);
    Multiply({.a = &m,
              .x = x,
              .x_stride = m.cols,
              .norm = norm,
              .eps = c.norm_eps,
              .out = out,
              .out_stride = m.rows},
             count);
  };
  if (grouped)
    Check(cuda::LaunchToBf16(memory.x, count, hidden, w.gate.padded, w.ffn_norm, c.norm_eps,
                             memory.moe_x_bf16, stream.get()));
  multiply(w.gate, memory.x, w.ffn_norm, memory.moe_x_bf16, memory.mid);
  multiply(w.up, memory.x, w.ffn_norm, memory.moe_x_bf16, memory.up);
  lora->Add({.parts = kGateUp,
             .layer = LayerOf(w),
             .x = memory.x,
             .cols = hidden,
             .norm = w.ffn_norm,
             .eps = c.norm_eps,
             .outs = {{{width, memory.up}, {width, memory.mid}}},
             .stride = width},
            count);
  Check(cuda::LaunchLowRankActivateSlots({.gate = memory.mid,
                                          .up = memory.up,
                                          .count = count,
                                          .cols = width,
                                          .activation = activation(),
                                          .limit = c.swiglu_limit,
                                          .out = memory.mid,
                                          .out_bf16 = grouped ? memory.shared_mid_bf16 : nullptr,
                                          .bf16_stride = w.down.padded},
                                         stream.get()));
  multiply(w.down, memory.mid, nullptr, memory.shared_mid_bf16, memory.shared_out);
  lora->Add({.parts = kDown,
             .layer = LayerOf(w),
             .x = memory.mid,
             .cols = width,
             .outs = {{{hidden, memory.shared_out}}},
             .stride = hidden},
            count);
}

}  // namespace celer
