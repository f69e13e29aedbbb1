#include "models/cuda/layer/layer_strategy.h"

namespace celer {

void CodesStrategy::Begin() {
  prepared_ = false;
}

cuda::CodeRows CodesStrategy::Input() const {
  return {m_.x_bf16, m_.token_scales};
}
cuda::CodeRows CodesStrategy::Mid() const {
  return {m_.mid_bf16, m_.token_scales + op_.shape.max_tokens};
}

void CodesStrategy::Multiply(const DeviceLayer& w, Part part, int64_t rows, int64_t padded, const void* codes,
                             int64_t tokens, void* out, bool f32_out) {
  op_.Check(gemm_.Run({.type = code_ == cuda::Code::kInt8 ? cuda::Gemm::Type::kInt8 : cuda::Gemm::Type::kFp8,
                       .rows = rows,
                       .tokens = tokens,
                       .padded = padded,
                       .f32_out = f32_out,
                       .out_stride = rows},
                      w.rows[part], codes, out, op_.stream.get()));
}

void CodesStrategy::ToCodes(float* x, int64_t cols, int padded, const cuda::CodeSums& sums, const float* norm,
                            int64_t tokens, const cuda::CodeRows& out) {
  op_.Check(cuda::LaunchToCodes({.code = code_,
                                 .x = x,
                                 .sums = sums,
                                 .tokens = tokens,
                                 .cols = static_cast<int>(cols),
                                 .padded = padded,
                                 .norm = norm,
                                 .eps = config().norm_eps,
                                 .out = out},
                                op_.stream.get()));
}

void CodesStrategy::Qkv(const DeviceLayer& w, const Batch& batch, int64_t) {
  if (!prepared_) ToCodes(m_.x, config().hidden, w.q.padded, {}, w.attention_norm, batch.count, Input());
  prepared_ = false;
  Multiply(w, DeviceLayer::kQkv, op_.shape.qkv_width(), w.q.padded, m_.x_bf16, batch.count, m_.qkv_rows,
           true);
  op_.FinishQkvRows(w, batch, op_.UsesNarrowQueries(w, batch), /*narrow_rows=*/false,
                    {w.row_scales[DeviceLayer::kQkv], Input().scales, code_ == cuda::Code::kInt8});
}

void CodesStrategy::Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  op_.Attention(w, batch, layer, {.narrow_q = op_.UsesNarrowQueries(w, batch)});
}

void CodesStrategy::Output(const DeviceLayer& w, const Batch& batch) {
  const int64_t hidden = config().hidden;
  ToCodes(m_.attention, op_.shape.q_width(), w.o.padded, {}, nullptr, batch.count, Input());
  Multiply(w, DeviceLayer::kOutput, hidden, w.o.padded, m_.x_bf16, batch.count, m_.mid, false);
  // x is complete, and under the next norm what gate and up read. The scales of the tokens are read before
  // they are written: each by its own block.
  ToCodes(m_.x, hidden, w.gate.padded, {m_.mid, w.row_scales[DeviceLayer::kOutput], Input().scales},
          w.ffn_norm, batch.count, Input());
}

void CodesStrategy::GateUp(const DeviceLayer& w, const Batch& batch, int64_t) {
  const int64_t width = config().intermediate;
  Multiply(w, DeviceLayer::kGateUp, 2 * width, w.gate.padded, m_.x_bf16, batch.count, m_.gate_up_bf16, false);
  op_.Check(cuda::LaunchActivateCodes(
      code_, {m_.gate_up_bf16, w.row_scales[DeviceLayer::kGateUp], Input().scales}, batch.count,
      static_cast<int>(width), w.down.padded, op_.activation(), Mid(), op_.stream.get()));
}

void CodesStrategy::Down(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  const int64_t hidden = config().hidden;
  const auto next = static_cast<size_t>(layer) + 1;
  Multiply(w, DeviceLayer::kDown, hidden, w.down.padded, m_.mid_bf16, batch.count, m_.mid, false);
  const cuda::CodeSums sums = {m_.mid, w.row_scales[DeviceLayer::kDown], Mid().scales};
  prepared_ = next < op_.model.layers.size();
  if (!prepared_) return ToCodes(m_.x, hidden, w.gate.padded, sums, nullptr, batch.count, {});
  const DeviceLayer& then = op_.model.layers[next];
  ToCodes(m_.x, hidden, then.q.padded, sums, then.attention_norm, batch.count, Input());
}

}  // namespace celer
