#include "kernels/llm/gate_up/gate_up_cuda.h"
#include "models/cuda/layer/layer_strategy.h"

namespace celer {

void JoinedStrategy::Begin() {
  op_.wgmma_prepared = false;
}

void JoinedStrategy::AddToX(const DeviceMatrix& matrix, const cuda::WgmmaActivations& from,
                            const float* next_norm, int padded, int count, Sums sum) {
  cuda::WgmmaArgs args;
  args.tokens = count;
  args.x = from;
  args.epilogue = op_.AddsToX() ? cuda::WgmmaEpilogue::kAdd : cuda::WgmmaEpilogue::kStore;
  args.out = op_.Sum(sum);
  args.out_stride = config().hidden;
  if (next_norm && op_.AddsToX()) {
    args.next = op_.WgmmaRows(m_.x_bf16, 0, count, padded);
    args.next_norm = next_norm;
    args.next_squares = m_.wgmma_squares;
    op_.wgmma_prepared = true;
  }
  const DeviceMatrix* const matrices[] = {&matrix};
  op_.MultiplyWgmma(matrices, args);
  op_.JoinRanks(sum, count);
}

cuda::WgmmaActivations JoinedStrategy::Attended(const DeviceLayer& w, int count) const {
  return op_.WgmmaRows(m_.attention_bf16, 0, count, w.o.padded);
}

cuda::WgmmaActivations JoinedStrategy::MidRows(const DeviceLayer& w, int count) const {
  return op_.WgmmaRows(m_.mid_bf16, 0, count, w.down.padded);
}

void JoinedStrategy::Qkv(const DeviceLayer& w, const Batch& batch, int64_t) {
  const DecoderConfig& c = config();
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  cuda::WgmmaArgs args = op_.NormedArgs(batch.count, w.q, w.attention_norm);
  if (cuda::WgmmaQkvRuns(w.kv, static_cast<int>(c.rope.dim)) && !w.q_norm && !w.k_norm &&
      SameForm(w.q, w.k) && SameForm(w.q, w.v)) {
    args.epilogue = cuda::WgmmaEpilogue::kQkv;
    args.qkv = {.batch = batch,
                .kv = w.kv,
                .decode = op_.batch_state.longest() == 1,
                .bias = {w.q_bias, w.k_bias, w.v_bias},
                .rope_cos = m_.rope_cos,
                .rope_sin = m_.rope_sin};
    args.out = m_.q;
    args.out_stride = op_.shape.q_width();
    return op_.MultiplyWgmma(projections, args);
  }
  args.out = m_.qkv_rows;
  args.out_stride = op_.shape.qkv_width();
  op_.MultiplyWgmma(projections, args);
  op_.FinishQkvRows(w, batch);
}

void JoinedStrategy::Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  AttentionForm form;
  if (op_.AttentionWritesBf16(w, batch)) form.wgmma = Attended(w, batch.count);
  op_.Attention(w, batch, layer, form);
}

void JoinedStrategy::Output(const DeviceLayer& w, const Batch& batch) {
  const cuda::WgmmaActivations attended = Attended(w, batch.count);
  if (!op_.AttentionWritesBf16(w, batch))
    op_.Check(cuda::LaunchWgmmaActivations(m_.attention, nullptr, batch.count,
                                           static_cast<int>(op_.shape.q_width()), nullptr, 0, attended,
                                           op_.stream.get()));
  // The router reads x itself.
  if (w.sparse()) return AddToX(w.o, attended, nullptr, 0, batch.count, kOutput);
  AddToX(w.o, attended, w.ffn_norm, w.gate.padded, batch.count, kOutput);
}

void JoinedStrategy::GateUp(const DeviceLayer& w, const Batch& batch, int64_t) {
  cuda::WgmmaArgs args = op_.NormedArgs(batch.count, w.gate, w.ffn_norm);
  const cuda::WgmmaActivations mid_rows = MidRows(w, batch.count);
  const DeviceMatrix* const gate_up[] = {&w.gate, &w.up};
  args.activation = op_.activation();
  if (SameForm(w.gate, w.up)) {
    args.epilogue = cuda::WgmmaEpilogue::kGateUp;
    args.mid = mid_rows;
    return op_.MultiplyWgmma(gate_up, args);
  }
  args.out_stride = w.gate.rows;
  args.out = m_.mid;
  op_.MultiplyWgmma(std::span(gate_up).first(1), args);
  args.out = m_.up;
  op_.MultiplyWgmma(std::span(gate_up).last(1), args);
  op_.Check(cuda::LaunchActivate(m_.mid, m_.up, m_.mid, int64_t{batch.count} * w.gate.rows, args.activation,
                                 op_.stream.get()));
  op_.Check(cuda::LaunchWgmmaActivations(m_.mid, nullptr, batch.count, w.gate.rows, nullptr, 0, mid_rows,
                                         op_.stream.get()));
}

void JoinedStrategy::Down(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  const auto next = static_cast<size_t>(layer) + 1;
  const bool last = next == op_.model.layers.size();
  const float* norm = last ? op_.model.norm : op_.model.layers[next].attention_norm;
  const int padded = last ? op_.model.head.padded : op_.model.layers[next].q.padded;
  AddToX(w.down, MidRows(w, batch.count), norm, padded, batch.count, kDown);
}

}  // namespace celer
