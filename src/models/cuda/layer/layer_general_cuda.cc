#include <utility>

#include "kernels/llm/gate_up/gate_up_cuda.h"
#include "kernels/llm/output_gate/output_gate_cuda.h"
#include "kernels/llm/qkv/qkv_general_cuda.h"
#include "kernels/llm/rms_norm/norm_cuda.h"
#include "models/cuda/layer/layer_strategy.h"

namespace celer {

void GeneralStrategy::Begin() {
  op_.wgmma_prepared = false;
  normed_by_ = nullptr;
  x_prepared_ = false;
}

bool GeneralStrategy::Joins(int count) const {
  const DecoderConfig& c = config();
  const bool branches = c.norm == NormKind::kRms && c.pre_norm && !c.post_norm && !c.parallel_block,
             products = !c.o_bias && !c.mlp_bias && c.gated_mlp && c.swiglu_limit == 0 && !c.output_gate,
             mixers = c.moe.experts == 0 && c.recurrent.layer.empty() && !c.IsLatent();
  return !op_.lora && branches && products && mixers && !op_.shape.deterministic && op_.ByWarpgroups(count) &&
         count <= cuda::kWgmmaJoined;
}

GeneralStrategy::Normed GeneralStrategy::Norm(const float* weight, const float* bias, int count) {
  if (!weight || config().norm == NormKind::kRms) return {m_.x, weight};
  if (normed_by_ == weight) return {m_.normed, nullptr};  // both branches of a parallel block have one norm
  op_.Check(cuda::LaunchNorm({.x = m_.x,
                              .tokens = count,
                              .cols = static_cast<int>(config().hidden),
                              .layer = true,
                              .weight = weight,
                              .bias = bias,
                              .eps = config().norm_eps,
                              .out = m_.normed},
                             op_.stream.get()));
  normed_by_ = weight;
  return {m_.normed, nullptr};
}

void GeneralStrategy::Qkv(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  const DecoderConfig& c = config();
  normed_by_ = nullptr;
  if (c.IsRecurrent(layer)) return Recurrent(w, batch, layer);
  if (c.IsLatent()) return LatentQkv(w, batch, layer);
  if (Joins(batch.count)) return JoinedQkv(w, batch, layer);
  const Normed in = Norm(w.attention_norm, w.attention_norm_bias, batch.count);
  if (op_.lora) {
    AdaptedQkv(w, in, batch.count);
    return FinishQkv(w, batch, layer);
  }
  if (FinishesInProduct(w, batch.count, layer)) {
    cuda::MatvecArgs args = op_.QkvArgs(w, batch);
    args.x = in.x;
    args.norm = in.norm;
    const Rope rope = RopeOf(layer);
    args.rope_dim = rope.dim, args.rope_cos = rope.cos, args.rope_sin = rope.sin;
    return op_.Check(cuda::LaunchMatvec(args, op_.stream.get()));
  }
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  op_.Project({.matrices = projections,
               .x = in.x,
               .norm = in.norm,
               .eps = c.norm_eps,
               .out = m_.qkv_rows,
               .out_stride = op_.shape.qkv_width(),
               .prepared = std::exchange(x_prepared_, false)},
              batch.count);
  FinishQkv(w, batch, layer);
}

void GeneralStrategy::JoinedQkv(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  cuda::WgmmaArgs args = op_.NormedArgs(batch.count, w.q, w.attention_norm);
  const Rope rope = RopeOf(layer);
  if (cuda::WgmmaQkvRuns(w.kv, rope.dim) && !w.q_norm && !w.k_norm && config().query_scale.beta == 0 &&
      SameForm(w.q, w.k) && SameForm(w.q, w.v)) {
    args.epilogue = cuda::WgmmaEpilogue::kQkv;
    args.qkv = {.batch = batch,
                .kv = w.kv,
                .decode = op_.batch_state.longest() == 1,
                .bias = {w.q_bias, w.k_bias, w.v_bias},
                .rope_cos = rope.cos,
                .rope_sin = rope.sin};
    args.out = m_.q;
    args.out_stride = op_.shape.q_width();
    return op_.MultiplyWgmma(projections, args);
  }
  args.out = m_.qkv_rows;
  args.out_stride = op_.shape.qkv_width();
  op_.MultiplyWgmma(projections, args);
  FinishQkv(w, batch, layer);
}

GeneralStrategy::Rope GeneralStrategy::RopeOf(int64_t layer) const {
  const DecoderConfig& c = config();
  if (!c.Rotates(layer)) return {};
  if (c.local_rope && c.Window(layer) > 0)
    return {static_cast<int>(c.local_rope->dim), m_.local_cos, m_.local_sin};
  return {static_cast<int>(c.rope.dim), m_.rope_cos, m_.rope_sin};
}

bool GeneralStrategy::FinishesInProduct(const DeviceLayer& w, int count, int64_t layer) const {
  const DecoderConfig& c = config();
  // An i8 row needs its largest value first.
  return !op_.ByWarpgroups(count) && count <= kMaxMatvecTokens && !w.q_norm && !w.k_norm && !c.output_gate &&
         c.query_scale.beta == 0 && w.kv.dtype != DType::kI8 && SameForm(w.q, w.k) && SameForm(w.q, w.v) &&
         cuda::CanFuseRope(static_cast<int>(c.head_dim), RopeOf(layer).dim) &&
         cuda::MatvecFits(w.q.format, w.q.padded, count);
}

void GeneralStrategy::FinishQkv(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  const DecoderConfig& c = config();
  cuda::FinishQkvGeneralArgs args;
  args.base = op_.FinishArgs(w, batch);
  if (!Joins(batch.count) && op_.UsesNarrowQueries(w, batch)) args.base.narrow_q_out = m_.q;
  const Rope rope = RopeOf(layer);
  args.base.rope_dim = rope.dim, args.base.rope_cos = rope.cos, args.base.rope_sin = rope.sin;
  args.row_norm = c.qk_norm_span == QkNormSpan::kRow;
  args.own_norms = c.qk_norm_span == QkNormSpan::kOwn;
  args.layer_norm = c.qk_norm_kind == NormKind::kLayer;
  args.norm_after_rope = c.qk_norm_after_rope;
  args.q_norm_bias = w.q_norm_bias, args.k_norm_bias = w.k_norm_bias;
  if (c.query_scale.beta != 0) args.q_scale = m_.query_scale;
  if (c.output_gate) args.q_head_stride = static_cast<int>(2 * c.head_dim);
  const bool plain = !args.row_norm && !args.own_norms && !args.layer_norm && !args.norm_after_rope &&
                     !args.q_scale && args.q_head_stride == 0;
  op_.Check(plain && cuda::FinishTakesNarrow(w.kv, args.base.rope_dim)
                ? cuda::LaunchFinishQkv(args.base, op_.stream.get())
                : cuda::LaunchFinishQkvGeneral(args, op_.stream.get()));
}

bool GeneralStrategy::AttendsForProduct(const DeviceLayer& w, const Batch& batch) {
  const DecoderConfig& c = config();
  // What stands between the two in a parallel block takes x_bf16.
  return !op_.lora && !c.parallel_block && !c.output_gate && op_.ByWarpgroups(batch.count) &&
         op_.AttentionWritesBf16(w, batch);
}

void GeneralStrategy::Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  const DecoderConfig& c = config();
  if (c.IsRecurrent(layer)) return;
  if (c.IsLatent()) return LatentAttention(w, batch, layer);
  if (Joins(batch.count)) return joined_.Attention(w, batch, layer);
  AttentionForm form{.narrow_q = op_.UsesNarrowQueries(w, batch)};
  if (AttendsForProduct(w, batch)) form.wgmma = op_.WgmmaRows(m_.x_bf16, w.o.rows, batch.count, w.o.padded);
  op_.Attention(w, batch, layer, form);
  if (!c.output_gate) return;
  op_.Check(cuda::LaunchOutputGate({.x = m_.attention,
                                    .gate = m_.qkv_rows + c.head_dim,
                                    .token_stride = op_.shape.qkv_width(),
                                    .head_stride = 2 * c.head_dim,
                                    .tokens = batch.count,
                                    .heads = static_cast<int>(c.heads),
                                    .head_dim = static_cast<int>(c.head_dim)},
                                   op_.stream.get()));
}

GeneralStrategy::Next GeneralStrategy::NextOfOutput(const DeviceLayer& w, int count) const {
  const DecoderConfig& c = config();
  const bool warpgroups = !op_.lora && op_.ByWarpgroups(count) && c.norm == NormKind::kRms &&
                          !c.parallel_block && cuda::AddNormedRuns(c.hidden);
  if (!warpgroups || w.sparse() || !GateUpJoins(w)) return {};
  return {w.ffn_norm, op_.WgmmaRows(m_.x_bf16, c.hidden, count, w.gate.padded)};
}

GeneralStrategy::Next GeneralStrategy::NextOfDown(int64_t layer, int count) const {
  const DecoderConfig& c = config();
  const bool warpgroups =
      !op_.lora && op_.ByWarpgroups(count) && c.norm == NormKind::kRms && cuda::AddNormedRuns(c.hidden);
  if (!warpgroups || layer + 1 == c.layers || c.IsRecurrent(layer + 1) || c.IsLatent()) return {};
  const DeviceLayer& next = op_.model.layers[static_cast<size_t>(layer) + 1];
  return {next.attention_norm, op_.WgmmaRows(m_.x_bf16, op_.shape.qkv_width(), count, next.q.padded)};
}

void GeneralStrategy::AddBranch(CudaOperators::Projection p, const float* post_norm, const Next& next,
                                int count, Sums sum) {
  const auto hidden = static_cast<int>(config().hidden);
  p.out_stride = hidden;
  p.add = post_norm == nullptr && op_.AddsToX();
  p.out = post_norm && op_.AddsToX() ? m_.branch : op_.Sum(sum);
  op_.Project(p, count);
  op_.JoinRanks(sum, count, post_norm ? m_.branch : nullptr);
  normed_by_ = nullptr;
  if (!post_norm) return;
  if (next.to.data) {
    x_prepared_ = true;
    return op_.Check(cuda::LaunchAddNormed({.branch = m_.branch,
                                            .weight = post_norm,
                                            .eps = op_.model.branch_eps,
                                            .x = m_.x,
                                            .tokens = count,
                                            .cols = hidden,
                                            .next = next.to,
                                            .next_weight = next.norm,
                                            .next_eps = config().norm_eps},
                                           op_.stream.get()));
  }
  AddNormedBranch(post_norm, count);
}

void GeneralStrategy::AddNormedBranch(const float* post_norm, int count) {
  op_.Check(cuda::LaunchNorm({.x = m_.branch,
                              .tokens = count,
                              .cols = static_cast<int>(config().hidden),
                              .weight = post_norm,
                              .eps = op_.model.branch_eps,
                              .add = true,
                              .out = m_.x},
                             op_.stream.get()));
}

void GeneralStrategy::Output(const DeviceLayer& w, const Batch& batch) {
  if (Joins(batch.count)) return joined_.Output(w, batch);
  const bool recurrent = static_cast<bool>(w.recurrent.out);
  const DeviceMatrix* const matrices[] = {recurrent ? &w.recurrent.out : &w.o};
  if (op_.lora)
    return AdaptedBranch(w, recurrent ? LoraPart::kStateOut : LoraPart::kO,
                         {.matrices = matrices, .x = m_.attention, .bias = w.o_bias}, w.attention_post_norm,
                         batch.count);
  const bool prepared = !recurrent && !config().IsLatent() && AttendsForProduct(w, batch);
  AddBranch({.matrices = matrices, .x = m_.attention, .bias = w.o_bias, .prepared = prepared},
            w.attention_post_norm, NextOfOutput(w, batch.count), batch.count, kOutput);
}

// Whether one product with the activation as its epilogue takes both.
bool GeneralStrategy::GateUpJoins(const DeviceLayer& w) const {
  return w.gate && SameForm(w.gate, w.up) && !w.gate_bias && config().swiglu_limit == 0;
}

void GeneralStrategy::GateUp(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  const int count = batch.count;
  if (Joins(count)) return joined_.GateUp(w, batch, layer);
  const Normed in = Norm(w.ffn_norm, w.ffn_norm_bias, count);
  if (op_.lora) return AdaptedGateUp(w, in, count);
  const bool warpgroups = op_.ByWarpgroups(count);
  mid_prepared_ = warpgroups && GateUpJoins(w);
  if (mid_prepared_) return GateUpByWarpgroups(w, in, count);
  if (w.gate && SameForm(w.gate, w.up) && !warpgroups && count <= kMaxMatvecTokens &&
      cuda::MatvecFits(w.gate.format, w.gate.padded, count)) {
    cuda::MatvecArgs args = op_.GateUpArgs(w, count);
    args.x = in.x;
    args.norm = in.norm;
    return op_.Check(cuda::LaunchMatvec(args, op_.stream.get()));
  }
  GateAndUp(w, in, count);
}

void GeneralStrategy::GateUpByWarpgroups(const DeviceLayer& w, const Normed& in, int count) {
  const DecoderConfig& c = config();
  const DeviceMatrix* const gate_up[] = {&w.gate, &w.up};
  cuda::WgmmaArgs args;
  args.tokens = count;
  args.x = op_.WgmmaRows(m_.x_bf16, c.hidden, count, w.gate.padded);
  if (!std::exchange(x_prepared_, false))
    op_.Check(cuda::LaunchWgmmaActivations(in.x, nullptr, count, static_cast<int>(c.hidden), in.norm,
                                           c.norm_eps, args.x, op_.stream.get()));
  args.epilogue = cuda::WgmmaEpilogue::kGateUp;
  args.activation = op_.activation();
  args.mid = op_.WgmmaRows(m_.mid_bf16, c.hidden, count, w.down.padded);
  op_.MultiplyWgmma(gate_up, args);
}

void GeneralStrategy::GateAndUp(const DeviceLayer& w, const Normed& in, int count) {
  const DecoderConfig& c = config();
  const DeviceMatrix *const gate[] = {&w.gate}, *const up[] = {&w.up};
  CudaOperators::Projection product{.matrices = gate,
                                    .x = in.x,
                                    .norm = in.norm,
                                    .eps = c.norm_eps,
                                    .out = m_.mid,
                                    .out_stride = w.up.rows};
  if (w.gate) op_.Project(product, count);
  product.prepared = w.gate && w.gate.padded == w.up.padded;
  product.matrices = up;
  product.out = m_.up;
  op_.Project(product, count);
  Activate(w, count);
}

void GeneralStrategy::Activate(const DeviceLayer& w, int count) {
  op_.Check(cuda::LaunchActivateRows({.gate = w.gate ? m_.mid : nullptr,
                                      .up = m_.up,
                                      .gate_bias = w.gate_bias,
                                      .up_bias = w.up_bias,
                                      .tokens = count,
                                      .cols = w.up.rows,
                                      .activation = op_.activation(),
                                      .limit = config().swiglu_limit,
                                      .out = m_.mid},
                                     op_.stream.get()));
}

void GeneralStrategy::Down(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  if (Joins(batch.count)) return joined_.Down(w, batch, layer);
  const DeviceMatrix* const matrices[] = {&w.down};
  if (op_.lora)
    return AdaptedBranch(w, LoraPart::kDown,
                         {.matrices = matrices, .x = m_.mid, .bias = w.down_bias, .in_bf16 = m_.mid_bf16},
                         w.ffn_post_norm, batch.count);
  AddBranch({.matrices = matrices,
             .x = m_.mid,
             .bias = w.down_bias,
             .in_bf16 = m_.mid_bf16,
             .prepared = mid_prepared_},
            w.ffn_post_norm, NextOfDown(layer, batch.count), batch.count, kDown);
}

}  // namespace celer
