// CudaDecoder's forward pass for many tokens with the products of wide_cuda.h.
#include <algorithm>

#include "kernels/gate_up/gate_up_cuda.h"
#include "kernels/qkv/qkv_cuda.h"
#include "models/cuda_decoder_impl.h"

namespace celer {

// Products of the same activations; matrices that differ in form go one by one.
void CudaDecoder::Impl::MultiplyWide(std::span<const DeviceMatrix* const> matrices, cuda::WideArgs args) {
  args.partial = wide_partial;
  args.tickets = wide_tickets;
  const bool alike = std::all_of(matrices.begin(), matrices.end(),
                                 [&](const DeviceMatrix* m) { return SameForm(*m, *matrices[0]); });
  for (size_t first = 0; first < matrices.size();) {
    args.matrices = alike ? static_cast<int>(matrices.size()) : 1;
    int64_t rows = 0;
    for (size_t i = 0; i < static_cast<size_t>(args.matrices); ++i, ++first) {
      args.w[i] = *matrices[first];
      rows += matrices[first]->rows;
    }
    Check(cuda::LaunchWide(args, stream->get()));
    args.out += rows;
    if (args.narrow_out) args.narrow_out = static_cast<std::byte*>(args.narrow_out) + 2 * rows;
  }
}

void CudaDecoder::Impl::LayerWide(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer) {
  if (batch.count <= cuda::kWideJoined) return LayerJoined(w, batch, layer);
  wide_prepared = false;
  const DecoderConfig& c = config;
  const int64_t n = batch.count, q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const int64_t qkv_width = q_width + 2 * kv_width;
  cuda::WideArgs args;
  args.tokens = batch.count;
  const auto activations = [&](const float* from, int64_t cols, const DeviceMatrix& m, const float* by,
                               int64_t rows) {
    args.x = WideRows(x_bf16, rows, n, m.padded);
    Check(cuda::LaunchWideActivations(from, nullptr, n, static_cast<int>(cols), by, c.norm_eps, args.x,
                                      stream->get()));
  };
  const auto store = [&](cuda::WideEpilogue epilogue, float* out, int64_t stride) {
    args.epilogue = epilogue;
    args.out = out;
    args.out_stride = stride;
  };
  Mark(Op::kQkv);
  activations(x, c.hidden, w.q, w.attention_norm, qkv_width);
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  const bool flash = UsesFlash(w, batch);
  // Rows that are rounded to 16 bits anyway.
  const bool narrow = flash && cuda::FinishTakesNarrow(w.kv, static_cast<int>(c.rope.dim));
  store(cuda::WideEpilogue::kStore, qkv_rows, qkv_width);
  if (narrow) args.narrow_out = qkv_rows, args.narrow_bf16 = w.kv.dtype == DType::kBf16;
  MultiplyWide(projections, args);
  args.narrow_out = nullptr;
  FinishQkvRows(w, batch, flash, narrow);
  Mark(Op::kAttention);
  if (AttentionWritesBf16(w, batch)) {
    args.x = WideRows(x_bf16, c.hidden, n, w.o.padded);
    Attention(w, batch, layer, {.narrow_q = flash, .wide = args.x});
    Mark(Op::kOutput);
  } else {
    Attention(w, batch, layer, {.narrow_q = flash});
    Mark(Op::kOutput);
    activations(attention, q_width, w.o, nullptr, c.hidden);
  }
  store(cuda::WideEpilogue::kAdd, x, c.hidden);
  const DeviceMatrix* const output[] = {&w.o};
  MultiplyWide(output, args);
  if (w.sparse()) return Moe(w, batch.count);
  Mark(Op::kGateUp);
  const cuda::WideActivations mid_rows = WideRows(mid_bf16, c.hidden, n, w.down.padded);
  activations(x, c.hidden, w.gate, w.ffn_norm, c.hidden);
  const DeviceMatrix* const gate_up[] = {&w.gate, &w.up};
  if (SameForm(w.gate, w.up)) {
    args.epilogue = cuda::WideEpilogue::kGateUp;
    args.activation = static_cast<cuda::DeviceActivation>(c.activation);
    args.mid = mid_rows;
    MultiplyWide(gate_up, args);
  } else {
    store(cuda::WideEpilogue::kStore, mid, c.intermediate);
    MultiplyWide(std::span(gate_up).first(1), args);
    store(cuda::WideEpilogue::kStore, up, c.intermediate);
    MultiplyWide(std::span(gate_up).last(1), args);
    Check(cuda::LaunchActivate(mid, up, mid, n * c.intermediate,
                               static_cast<cuda::DeviceActivation>(c.activation), stream->get()));
    Check(cuda::LaunchWideActivations(mid, nullptr, n, static_cast<int>(c.intermediate), nullptr, 0, mid_rows,
                                      stream->get()));
  }
  Mark(Op::kDown);
  args.x = mid_rows;
  store(cuda::WideEpilogue::kAdd, x, c.hidden);
  const DeviceMatrix* const down[] = {&w.down};
  MultiplyWide(down, args);
}

// For a product of x under a norm: with what the product in front prepared, or with activations made here.
cuda::WideArgs CudaDecoder::Impl::NormedArgs(int count, const DeviceMatrix& m, const float* by) {
  cuda::WideArgs args;
  args.tokens = count;
  args.x = WideRows(x_bf16, 0, count, m.padded);
  if (std::exchange(wide_prepared, false)) {
    args.squares = wide_squares;
    args.squares_of = static_cast<int>(config.hidden);
    args.eps = config.norm_eps;
    return args;
  }
  Check(cuda::LaunchWideActivations(x, nullptr, count, static_cast<int>(config.hidden), by, config.norm_eps,
                                    args.x, stream->get()));
  return args;
}

void CudaDecoder::Impl::QkvJoined(const DeviceLayer& w, const cuda::DeviceBatch& batch) {
  const DecoderConfig& c = config;
  const int64_t q_width = c.heads * c.head_dim;
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  Mark(Op::kQkv);
  cuda::WideArgs args = NormedArgs(batch.count, w.q, w.attention_norm);
  if (cuda::WideQkvRuns(w.kv, static_cast<int>(c.rope.dim)) && !w.q_norm && !w.k_norm && SameForm(w.q, w.k) &&
      SameForm(w.q, w.v)) {
    args.epilogue = cuda::WideEpilogue::kQkv;
    args.qkv = {.batch = batch,
                .kv = w.kv,
                .decode = longest == 1,
                .bias = {w.q_bias, w.k_bias, w.v_bias},
                .rope_cos = rope_cos,
                .rope_sin = rope_sin};
    args.out = q;
    args.out_stride = q_width;
    return MultiplyWide(projections, args);
  }
  args.out = qkv_rows;
  args.out_stride = q_width + 2 * c.kv_heads * c.head_dim;
  MultiplyWide(projections, args);
  FinishQkvRows(w, batch);
}

// A product also does what lies between it and the next one.
void CudaDecoder::Impl::LayerJoined(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer) {
  const DecoderConfig& c = config;
  const int64_t n = batch.count, q_width = c.heads * c.head_dim;
  const DeviceLayer* following = layer + 1 < c.layers ? &layers[static_cast<size_t>(layer) + 1] : nullptr;
  const DeviceMatrix* const output[] = {&w.o};
  const DeviceMatrix* const gate_up[] = {&w.gate, &w.up};
  const DeviceMatrix* const down[] = {&w.down};
  // A product that is added to x, and prepares the next one under its norm.
  const auto add_to_x = [&](std::span<const DeviceMatrix* const> matrices, const cuda::WideActivations& from,
                            const float* next_norm, int padded) {
    cuda::WideArgs args;
    args.tokens = batch.count;
    args.x = from;
    args.epilogue = cuda::WideEpilogue::kAdd;
    args.out = x;
    args.out_stride = c.hidden;
    if (next_norm) {
      args.next = WideRows(x_bf16, 0, n, padded);
      args.next_norm = next_norm;
      args.next_squares = wide_squares;
      wide_prepared = true;
    }
    MultiplyWide(matrices, args);
  };

  if (layer == 0) {
    wide_prepared = false;
    QkvJoined(w, batch);
  }
  Mark(Op::kAttention);
  const cuda::WideActivations attended = WideRows(attention_bf16, 0, n, w.o.padded);
  if (!AttentionWritesBf16(w, batch)) {
    Attention(w, batch, layer);
    Mark(Op::kOutput);
    Check(cuda::LaunchWideActivations(attention, nullptr, n, static_cast<int>(q_width), nullptr, 0, attended,
                                      stream->get()));
  } else {
    Attention(w, batch, layer, {.wide = attended});
    Mark(Op::kOutput);
  }
  if (w.sparse()) {
    add_to_x(output, attended, nullptr, 0);
    Moe(w, batch.count);
    if (following) QkvJoined(*following, batch);
    return;
  }
  add_to_x(output, attended, w.ffn_norm, w.gate.padded);

  Mark(Op::kGateUp);
  cuda::WideArgs args = NormedArgs(batch.count, w.gate, w.ffn_norm);
  const cuda::WideActivations mid_rows = WideRows(mid_bf16, 0, n, w.down.padded);
  args.activation = static_cast<cuda::DeviceActivation>(c.activation);
  if (SameForm(w.gate, w.up)) {
    args.epilogue = cuda::WideEpilogue::kGateUp;
    args.mid = mid_rows;
    MultiplyWide(gate_up, args);
  } else {
    args.out_stride = w.gate.rows;
    args.out = mid;
    MultiplyWide(std::span(gate_up).first(1), args);
    args.out = up;
    MultiplyWide(std::span(gate_up).last(1), args);
    Check(cuda::LaunchActivate(mid, up, mid, n * w.gate.rows, args.activation, stream->get()));
    Check(cuda::LaunchWideActivations(mid, nullptr, n, w.gate.rows, nullptr, 0, mid_rows, stream->get()));
  }

  Mark(Op::kDown);
  if (!following) return add_to_x(down, mid_rows, norm, head.padded);
  add_to_x(down, mid_rows, following->attention_norm, following->q.padded);
  QkvJoined(*following, batch);
}

void CudaDecoder::Impl::LogitsWide(int rows, const int32_t* of) {
  const DecoderConfig& c = config;
  const DeviceMatrix* const matrices[] = {&head};
  if (wide_prepared && !of) {  // a decode step: every token has logits
    cuda::WideArgs args = NormedArgs(rows, head, norm);
    args.out = logits;
    args.out_stride = c.vocab;
    return MultiplyWide(matrices, args);
  }
  wide_prepared = false;
  cuda::WideArgs args;
  args.tokens = rows;
  args.x = WideRows(x_bf16, c.vocab, rows, head.padded);
  Check(cuda::LaunchWideActivations(x, of, rows, static_cast<int>(c.hidden), norm, c.norm_eps, args.x,
                                    stream->get()));
  args.out = logits;
  args.out_stride = c.vocab;
  MultiplyWide(matrices, args);
}

}  // namespace celer
