#include "kernels/llm/gate_up/gate_up_cuda.h"
#include "models/cuda/layer/layer_strategy.h"

namespace celer {

Result<std::unique_ptr<GemmStrategy>> GemmStrategy::Make(int device, CudaOperators& op, cuda::Gemm gemm) {
  auto made = std::unique_ptr<GemmStrategy>(new GemmStrategy(op, std::move(gemm)));
  CELER_ASSIGN(Stream side, Stream::Create(device));
  made->unpack_stream_.emplace(std::move(side));
  for (size_t i = 0; i < 2; ++i) {
    CELER_ASSIGN(Event ready, Event::Create(device));
    made->unpack_done_[i].emplace(std::move(ready));
    CELER_ASSIGN(Event free, Event::Create(device));
    made->multiply_done_[i].emplace(std::move(free));
  }
  return made;
}

// Both places are free from here on.
void GemmStrategy::Begin() {
  if (op_.shape.rows) return;
  next_unpack_ = next_multiply_ = 0;
  for (std::optional<Event>& event : multiply_done_) op_.Check(event->Record(op_.stream));
  Unpack(0, kQkv);
}

// The matrices of a part have one width and stand below each other.
std::span<const DeviceMatrix* const> GemmStrategy::Of(const DeviceLayer& w, Part part,
                                                      std::array<const DeviceMatrix*, 7>& all) {
  all = {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down};
  constexpr size_t kBegin[] = {0, 3, 4, 6, 7};
  return std::span(all).subspan(kBegin[part], kBegin[part + 1] - kBegin[part]);
}

void GemmStrategy::Unpack(int64_t layer, Part part) {
  if (op_.shape.rows || layer >= config().layers) return;
  std::array<const DeviceMatrix*, 7> all;
  const auto matrices = Of(op_.model.layers[static_cast<size_t>(layer)], part, all);
  const size_t slot = next_unpack_;
  next_unpack_ ^= 1;
  op_.Check(unpack_stream_->WaitFor(*multiply_done_[slot]));
  std::byte* to = slot == 0 ? m_.unpacked_a : m_.unpacked_b;
  int64_t rows = 0;
  for (const DeviceMatrix* m : matrices) {
    op_.Check(cuda::LaunchUnpack(*m, to + 2 * rows * m->padded, unpack_stream_->get()));
    rows += m->rows;
  }
  op_.Check(unpack_done_[slot]->Record(*unpack_stream_));
}

void GemmStrategy::Multiply(const DeviceLayer& w, Part part, const std::byte* x_rows, int64_t tokens,
                            void* out, bool f32_out, int64_t out_stride, bool add) {
  std::array<const DeviceMatrix*, 7> all;
  int64_t rows = 0;
  const auto matrices = Of(w, part, all);
  for (const DeviceMatrix* m : matrices) rows += m->rows;
  const auto run = [&](const std::byte* weights) {
    op_.Check(gemm_.Run({.rows = rows,
                         .tokens = tokens,
                         .padded = matrices[0]->padded,
                         .f32_out = f32_out,
                         .add = add,
                         .out_stride = out_stride},
                        weights, x_rows, out, op_.stream.get()));
  };
  if (op_.shape.rows) return run(w.rows[part]);
  const size_t slot = next_multiply_;
  next_multiply_ ^= 1;
  op_.Check(op_.stream.WaitFor(*unpack_done_[slot]));
  run(slot == 0 ? m_.unpacked_a : m_.unpacked_b);
  op_.Check(multiply_done_[slot]->Record(op_.stream));
}

void GemmStrategy::ToBf16(const float* from, int64_t tokens, int64_t cols, int padded, const float* norm) {
  op_.Check(cuda::LaunchToBf16(from, tokens, static_cast<int>(cols), padded, norm, config().norm_eps,
                               m_.x_bf16, op_.stream.get()));
}

void GemmStrategy::Project(const DeviceLayer& w, DeviceLayer::Part part, const CudaOperators::Projection& p,
                           int count) {
  const DeviceMatrix& first = *p.matrices[0];
  std::byte* const x = p.in_bf16 ? p.in_bf16 : m_.x_bf16;
  if (!p.prepared)
    op_.Check(cuda::LaunchToBf16(p.x, count, first.cols, first.padded, p.norm, p.eps, x, op_.stream.get()));
  std::array<const DeviceMatrix*, 7> all;
  const std::byte* weights = w.rows[part];
  for (const DeviceMatrix* m : Of(w, part, all)) {
    if (m == &first) break;
    weights += 2 * int64_t{m->rows} * m->padded;
  }
  int64_t rows = 0;
  for (const DeviceMatrix* m : p.matrices) rows += m->rows;
  op_.Check(gemm_.Run({.rows = rows,
                       .tokens = count,
                       .padded = first.padded,
                       .f32_out = true,
                       .add = p.add,
                       .out_stride = p.out_stride},
                      weights, x, p.out, op_.stream.get()));
}

bool GemmStrategy::Direct(const DeviceLayer& w, const Batch& batch) {
  return op_.AttentionWritesBf16(w, batch);
}

void GemmStrategy::Qkv(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  const DecoderConfig& c = config();
  Unpack(layer, kOutput);
  ToBf16(m_.x, batch.count, c.hidden, w.q.padded, w.attention_norm);
  Multiply(w, kQkv, m_.x_bf16, batch.count, m_.qkv_rows, true, op_.shape.qkv_width(), false);
  w.sparse() ? Unpack(layer + 1, kQkv) : Unpack(layer, kGateUp);  // experts are not unpacked
  op_.FinishQkvRows(w, batch, op_.UsesNarrowQueries(w, batch));
}

void GemmStrategy::Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  op_.Attention(
      w, batch, layer,
      {.narrow_q = op_.UsesNarrowQueries(w, batch), .rows = Direct(w, batch) ? m_.x_bf16 : nullptr});
}

void GemmStrategy::Output(const DeviceLayer& w, const Batch& batch) {
  if (!Direct(w, batch)) ToBf16(m_.attention, batch.count, op_.shape.q_width(), w.o.padded, nullptr);
  Multiply(w, Part::kOutput, m_.x_bf16, batch.count, op_.Sum(Sums::kOutput), true, config().hidden,
           op_.AddsToX());
  op_.JoinRanks(Sums::kOutput, batch.count);
}

void GemmStrategy::GateUp(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  const DecoderConfig& c = config();
  Unpack(layer, kDown);
  ToBf16(m_.x, batch.count, c.hidden, w.gate.padded, w.ffn_norm);
  Multiply(w, kGateUp, m_.x_bf16, batch.count, m_.gate_up_bf16, false, 2 * c.intermediate, false);
  op_.Check(cuda::LaunchActivateBf16(m_.gate_up_bf16, batch.count, static_cast<int>(c.intermediate),
                                     w.down.padded, op_.activation(), m_.mid_bf16, op_.stream.get()));
}

void GemmStrategy::Down(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  Unpack(layer + 1, kQkv);
  Multiply(w, Part::kDown, m_.mid_bf16, batch.count, op_.Sum(Sums::kDown), true, config().hidden,
           op_.AddsToX());
  op_.JoinRanks(Sums::kDown, batch.count);
}

}  // namespace celer
