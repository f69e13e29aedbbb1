#include "kernels/llm/gate_up/gate_up_cuda.h"
#include "kernels/llm/qkv/qkv_cuda.h"
#include "models/cuda/layer/layer_strategy.h"

namespace celer {

void WgmmaStrategy::Begin() {
  op_.wgmma_prepared = false;
}

cuda::WgmmaActivations WgmmaStrategy::Activations(const float* from, int64_t cols, const DeviceMatrix& m,
                                                  const float* norm, int64_t rows, int count) {
  const cuda::WgmmaActivations to = op_.WgmmaRows(m_.x_bf16, rows, count, m.padded);
  op_.Check(cuda::LaunchWgmmaActivations(from, nullptr, count, static_cast<int>(cols), norm,
                                         config().norm_eps, to, op_.stream.get()));
  return to;
}

void WgmmaStrategy::Qkv(const DeviceLayer& w, const Batch& batch, int64_t) {
  const DecoderConfig& c = config();
  const int64_t qkv_width = op_.shape.qkv_width();
  cuda::WgmmaArgs args;
  args.tokens = batch.count;
  args.x = Activations(m_.x, c.hidden, w.q, w.attention_norm, qkv_width, batch.count);
  const bool narrow_q = op_.UsesNarrowQueries(w, batch);
  // Rows that are rounded to 16 bits anyway; only large tiles write them so.
  const bool narrow = narrow_q && cuda::WgmmaMostTile() > cuda::kWgmmaJoined &&
                      cuda::FinishTakesNarrow(w.kv, static_cast<int>(c.rope.dim));
  args.out = m_.qkv_rows;
  args.out_stride = qkv_width;
  if (narrow) args.narrow_out = m_.qkv_rows, args.narrow_bf16 = w.kv.dtype == DType::kBf16;
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  op_.MultiplyWgmma(projections, args);
  op_.FinishQkvRows(w, batch, narrow_q, narrow);
}

void WgmmaStrategy::Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  AttentionForm form{.narrow_q = op_.UsesNarrowQueries(w, batch)};
  if (op_.AttentionWritesBf16(w, batch))
    form.wgmma = op_.WgmmaRows(m_.x_bf16, config().hidden, batch.count, w.o.padded);
  op_.Attention(w, batch, layer, form);
}

void WgmmaStrategy::Output(const DeviceLayer& w, const Batch& batch) {
  const int64_t hidden = config().hidden;
  cuda::WgmmaArgs args;
  args.tokens = batch.count;
  args.x = op_.AttentionWritesBf16(w, batch)
               ? op_.WgmmaRows(m_.x_bf16, hidden, batch.count, w.o.padded)
               : Activations(m_.attention, op_.shape.q_width(), w.o, nullptr, hidden, batch.count);
  args.epilogue = op_.AddsToX() ? cuda::WgmmaEpilogue::kAdd : cuda::WgmmaEpilogue::kStore;
  args.out = op_.Sum(kOutput);
  args.out_stride = hidden;
  const DeviceMatrix* const output[] = {&w.o};
  op_.MultiplyWgmma(output, args);
  op_.JoinRanks(kOutput, batch.count);
}

void WgmmaStrategy::GateUp(const DeviceLayer& w, const Batch& batch, int64_t) {
  const DecoderConfig& c = config();
  const cuda::WgmmaActivations mid_rows = op_.WgmmaRows(m_.mid_bf16, c.hidden, batch.count, w.down.padded);
  cuda::WgmmaArgs args;
  args.tokens = batch.count;
  args.x = Activations(m_.x, c.hidden, w.gate, w.ffn_norm, c.hidden, batch.count);
  const DeviceMatrix* const gate_up[] = {&w.gate, &w.up};
  if (SameForm(w.gate, w.up)) {
    args.epilogue = cuda::WgmmaEpilogue::kGateUp;
    args.activation = op_.activation();
    args.mid = mid_rows;
    return op_.MultiplyWgmma(gate_up, args);
  }
  args.out_stride = c.intermediate;
  args.out = m_.mid;
  op_.MultiplyWgmma(std::span(gate_up).first(1), args);
  args.out = m_.up;
  op_.MultiplyWgmma(std::span(gate_up).last(1), args);
  op_.Check(cuda::LaunchActivate(m_.mid, m_.up, m_.mid, batch.count * c.intermediate, op_.activation(),
                                 op_.stream.get()));
  op_.Check(cuda::LaunchWgmmaActivations(m_.mid, nullptr, batch.count, static_cast<int>(c.intermediate),
                                         nullptr, 0, mid_rows, op_.stream.get()));
}

void WgmmaStrategy::Down(const DeviceLayer& w, const Batch& batch, int64_t) {
  const int64_t hidden = config().hidden;
  cuda::WgmmaArgs args;
  args.tokens = batch.count;
  args.x = op_.WgmmaRows(m_.mid_bf16, hidden, batch.count, w.down.padded);
  args.epilogue = op_.AddsToX() ? cuda::WgmmaEpilogue::kAdd : cuda::WgmmaEpilogue::kStore;
  args.out = op_.Sum(kDown);
  args.out_stride = hidden;
  const DeviceMatrix* const down[] = {&w.down};
  op_.MultiplyWgmma(down, args);
  op_.JoinRanks(kDown, batch.count);
}

}  // namespace celer
