#include "models/cuda/operators.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/llm/attention/cuda/flash_attention_cuda.h"
#include "kernels/llm/gate_up/gate_up_cuda.h"
#include "kernels/llm/logits/logits_cuda.h"
#include "kernels/llm/qkv/qkv_cuda.h"
#include "kernels/llm/rms_norm/norm_cuda.h"

namespace celer {

// Where shared memory is small, a few tokens of a very wide matrix, too, are multiplied in tiles.
void CudaOperators::MultiplyTiles(const Product& p, int count) {
  cuda::WgmmaArgs args;
  args.tokens = count;
  args.x = WgmmaRows(p.a->cols <= shape.input_width() ? memory.x_bf16 : memory.mid_bf16, p.a->rows, count,
                     p.a->padded);
  Check(cuda::LaunchWgmmaActivations(p.x, p.rows, count, p.a->cols, p.norm, p.eps, args.x, stream.get()));
  args.epilogue = p.residual ? cuda::WgmmaEpilogue::kAdd : cuda::WgmmaEpilogue::kStore;
  args.out = p.out;
  args.out_stride = p.out_stride;
  const DeviceMatrix* const matrices[] = {p.a};
  MultiplyWgmma(matrices, args);
  if (p.bias) Check(cuda::LaunchAddBias(p.out, p.bias, count, static_cast<int>(p.out_stride), stream.get()));
}

void CudaOperators::Multiply(const Product& p, int count) {
  const bool in_place = p.x_stride == p.a->cols && (!p.residual || p.residual == p.out);
  if (shape.wgmma && in_place && !cuda::MatvecFits(p.a->format, p.a->padded, 1))
    return MultiplyTiles(p, count);
  // The activations of a few tokens fit into shared memory; a wide matrix takes fewer of them.
  int at_once = kMaxMatvecTokens;
  while (at_once > 1 && !cuda::MatvecFits(p.a->format, p.a->padded, at_once)) --at_once;
  for (int first = 0; first < count; first += at_once) {
    cuda::MatvecArgs args;
    args.a = *p.a;
    args.tokens = std::min(at_once, count - first);
    args.x = p.rows ? p.x : p.x + first * p.x_stride;
    args.rows = p.rows ? p.rows + first : nullptr;
    args.x_stride = p.x_stride;
    args.norm = p.norm;
    args.eps = p.eps;
    args.a_bias = p.bias;
    args.out = p.out + first * p.out_stride;
    args.residual = p.residual ? p.residual + first * p.out_stride : nullptr;
    args.out_stride = p.out_stride;
    Check(cuda::LaunchMatvec(args, stream.get()));
  }
}

DeviceMatrix CudaOperators::Joined(std::span<const DeviceMatrix* const> matrices) {
  DeviceMatrix all = *matrices[0];
  for (size_t i = 1; i < matrices.size(); ++i) {
    const DeviceMatrix &first = *matrices[i - 1], &second = *matrices[i];
    const bool follows =
        SameForm(first, second) && first.rows % 8 == 0 && second.data == first.data + first.data_bytes() &&
        (!first.scales || second.scales == first.scales + (first.bytes() - first.data_bytes()));
    if (!follows) return {};
    all.rows += second.rows;
  }
  return all;
}

cuda::WgmmaActivations CudaOperators::Activations(const Projection& p, int count) const {
  return WgmmaRows(p.in_bf16 ? p.in_bf16 : memory.x_bf16, p.out_stride, count, p.matrices[0]->padded);
}

void CudaOperators::Project(const Projection& p, int count) {
  if (!ByWarpgroups(count)) {
    Product product{.x = p.x,
                    .x_stride = p.matrices[0]->cols,
                    .rows = p.rows,
                    .norm = p.norm,
                    .eps = p.eps,
                    .bias = p.bias,
                    .out = p.out,
                    .out_stride = p.out_stride};
    if (const DeviceMatrix all = Joined(p.matrices)) {
      product.a = &all;
      product.residual = p.add ? p.out : nullptr;
      return Multiply(product, count);
    }
    for (const DeviceMatrix* matrix : p.matrices) {
      product.a = matrix;
      product.residual = p.add ? product.out : nullptr;
      Multiply(product, count);
      product.out += matrix->rows;
    }
    return;
  }
  cuda::WgmmaArgs args;
  args.tokens = count;
  args.x = Activations(p, count);
  if (!p.prepared)
    Check(cuda::LaunchWgmmaActivations(p.x, p.rows, count, p.matrices[0]->cols, p.norm, p.eps, args.x,
                                       stream.get()));
  args.epilogue = p.add ? cuda::WgmmaEpilogue::kAdd : cuda::WgmmaEpilogue::kStore;
  args.out = p.out;
  args.out_stride = p.out_stride;
  for (auto rest = p.matrices; !rest.empty();) {  // three at a time
    const auto some = rest.first(std::min<size_t>(rest.size(), args.w.size()));
    MultiplyWgmma(some, args);
    for (const DeviceMatrix* matrix : some) args.out += matrix->rows;
    rest = rest.subspan(some.size());
  }
  if (p.bias) Check(cuda::LaunchAddBias(p.out, p.bias, count, static_cast<int>(p.out_stride), stream.get()));
}

cuda::MatvecArgs CudaOperators::QkvArgs(const DeviceLayer& w, const cuda::DeviceBatch& batch) const {
  const DecoderConfig& c = config();
  cuda::MatvecArgs args;
  args.epilogue = cuda::Epilogue::kQkv;
  args.a = w.q, args.b = w.k, args.c = w.v;
  args.a_bias = w.q_bias, args.b_bias = w.k_bias, args.c_bias = w.v_bias;
  args.x = memory.x;
  args.x_stride = c.hidden;
  args.tokens = batch.count;
  args.norm = w.attention_norm;
  args.eps = c.norm_eps;
  args.out = memory.q;
  args.out_stride = c.heads * c.head_dim;
  args.batch = batch;
  args.kv = w.kv;
  args.rope_dim = static_cast<int>(c.rope.dim);
  args.rope_cos = memory.rope_cos;
  args.rope_sin = memory.rope_sin;
  return args;
}

cuda::MatvecArgs CudaOperators::GateUpArgs(const DeviceLayer& w, int count) const {
  const DecoderConfig& c = config();
  cuda::MatvecArgs args;
  args.epilogue = cuda::Epilogue::kGateUp;
  args.a = w.gate, args.b = w.up;
  args.x = memory.x;
  args.x_stride = c.hidden;
  args.tokens = count;
  args.norm = w.ffn_norm;
  args.eps = c.norm_eps;
  args.a_bias = w.gate_bias, args.b_bias = w.up_bias;
  args.activation = activation();
  args.swiglu_limit = c.swiglu_limit;
  args.out = memory.mid;
  args.out_stride = w.gate.rows;
  return args;
}

void CudaOperators::GateUpByMatvec(const DeviceLayer& w, int count) {
  const DecoderConfig& c = config();
  if (count <= kMaxMatvecTokens && SameForm(w.gate, w.up) &&
      cuda::MatvecFits(w.gate.format, w.gate.padded, count)) {
    return Check(cuda::LaunchMatvec(GateUpArgs(w, count), stream.get()));
  }
  Product p{.a = &w.gate,
            .x = memory.x,
            .x_stride = c.hidden,
            .norm = w.ffn_norm,
            .eps = c.norm_eps,
            .out = memory.mid,
            .out_stride = w.gate.rows};
  Multiply(p, count);
  p.a = &w.up, p.out = memory.up;
  Multiply(p, count);
  Check(cuda::LaunchActivate(memory.mid, memory.up, memory.mid, int64_t{count} * w.gate.rows, activation(),
                             stream.get()));
}

cuda::FinishQkvArgs CudaOperators::FinishArgs(const DeviceLayer& w, const cuda::DeviceBatch& batch) const {
  const DecoderConfig& c = config();
  const int64_t kv_width = shape.kv_width(), qkv_width = shape.qkv_width();
  cuda::FinishQkvArgs finish;
  finish.batch = batch;
  finish.kv = w.kv;
  finish.q = memory.qkv_rows;
  finish.k = memory.qkv_rows + (qkv_width - 2 * kv_width);
  finish.v = memory.qkv_rows + (qkv_width - kv_width);
  finish.q_stride = finish.kv_stride = qkv_width;
  finish.q_out = memory.q;
  finish.q_bias = w.q_bias, finish.k_bias = w.k_bias, finish.v_bias = w.v_bias;
  finish.heads = static_cast<int>(c.heads);
  finish.q_norm = w.q_norm, finish.k_norm = w.k_norm;
  finish.eps = model.branch_eps;
  finish.rope_dim = static_cast<int>(c.rope.dim);
  finish.rope_cos = memory.rope_cos, finish.rope_sin = memory.rope_sin;
  return finish;
}

void CudaOperators::FinishQkvRows(const DeviceLayer& w, const cuda::DeviceBatch& batch, bool narrow_q,
                                  bool narrow_rows, const ProductScales& scales) {
  cuda::FinishQkvArgs finish = FinishArgs(w, batch);
  if (narrow_rows) {
    const auto column = [&](int64_t i) {
      return reinterpret_cast<const std::byte*>(memory.qkv_rows) + i * 2;
    };
    finish.k = column(shape.q_width()), finish.v = column(shape.q_width() + shape.kv_width());
  }
  finish.narrow_in = narrow_rows;
  finish.integer_in = scales.integers;
  finish.row_scales = scales.rows, finish.token_scales = scales.tokens;
  if (narrow_q) finish.narrow_q_out = memory.q;
  Check(cuda::LaunchFinishQkv(finish, stream.get()));
}

bool CudaOperators::UsesFlash(const DeviceLayer& w, const cuda::DeviceBatch& batch) {
  const auto chosen = ChooseAttention({.tokens = batch.count,
                                       .longest = batch_state.longest(),
                                       .deterministic = shape.deterministic,
                                       .flash = !shape.exact && cuda::FlashAttentionRuns(w.kv)});
  if (!chosen) Check(Status(chosen.error()));
  return chosen && *chosen == AttentionStrategy::kFlash;
}

bool CudaOperators::UsesNarrowQueries(const DeviceLayer& w, const cuda::DeviceBatch& batch) {
  return UsesFlash(w, batch) && SeparateSingles() == 0;
}

// Single tokens beside a prompt: flash attention would spend 128 queries on each. Sequences that decode stand
// in front of those that came later.
int CudaOperators::SeparateSingles() const {
  return static_cast<int>(std::min<int64_t>(batch_state.leading_singles(), cuda::kAttentionTokens));
}

bool CudaOperators::AttentionWritesBf16(const DeviceLayer& w, const cuda::DeviceBatch& batch) {
  return w.o.padded == shape.q_width() &&
         (UsesFlash(w, batch) ? config().head_dim % 32 == 0
                              : batch.count <= cuda::AttentionTokens(shape.deterministic));
}

void CudaOperators::Attention(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer,
                              const AttentionForm& form) {
  const DecoderConfig& c = config();
  cuda::DeviceAttentionArgs args;
  args.batch = batch;
  args.kv = w.kv;
  args.q = memory.q;
  args.heads = static_cast<int>(c.heads);
  args.scale = c.attention_scale != 0 ? c.attention_scale : 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  args.window = static_cast<int>(c.Window(layer));
  args.out = memory.attention;
  args.partial = memory.partial;
  args.tickets = memory.attention_tickets;
  args.splits = cuda::AttentionSplits(args.heads, w.kv.kv_heads);
  args.decode = batch_state.longest() == 1;
  args.steady = shape.deterministic;
  if (form.narrow_q) args.narrow_q = memory.q;
  args.wgmma = form.wgmma;
  args.rows = form.rows;
  args.rows_width = w.o.padded;
  const cuda::AttentionScores scores{.softcap = c.attention_softcap, .sinks = w.sinks};
  if (!UsesFlash(w, batch)) return Check(cuda::LaunchAttention(args, scores, stream.get()));
  const int singles = SeparateSingles();
  if (singles > 0) {
    cuda::DeviceAttentionArgs some = args;
    some.batch.count = singles;
    some.decode = true;
    Check(cuda::LaunchAttention(some, scores, stream.get()));
  }
  Check(cuda::LaunchFlashAttention({.base = args,
                                    .seq_start = batch_state.seq_start() + singles,
                                    .sequences = static_cast<int>(batch_state.sequences()) - singles,
                                    .longest = static_cast<int>(batch_state.longest()),
                                    .scores = scores},
                                   stream.get()));
}

void CudaOperators::MultiplyWgmma(std::span<const DeviceMatrix* const> matrices, cuda::WgmmaArgs args) {
  args.partial = memory.wgmma_partial;
  args.tickets = memory.wgmma_tickets;
  args.whole_tiles = shape.deterministic;
  const bool alike = std::all_of(matrices.begin(), matrices.end(),
                                 [&](const DeviceMatrix* m) { return SameForm(*m, *matrices[0]); });
  for (size_t first = 0; first < matrices.size();) {
    args.matrices = alike ? static_cast<int>(matrices.size()) : 1;
    int64_t rows = 0;
    for (size_t i = 0; i < static_cast<size_t>(args.matrices); ++i, ++first) {
      args.w[i] = *matrices[first];
      rows += matrices[first]->rows;
    }
    Check(cuda::LaunchWgmma(args, stream.get()));
    args.out += rows;
    if (args.narrow_out) args.narrow_out = static_cast<std::byte*>(args.narrow_out) + 2 * rows;
  }
}

cuda::WgmmaArgs CudaOperators::NormedArgs(int count, const DeviceMatrix& m, const float* by) {
  cuda::WgmmaArgs args;
  args.tokens = count;
  args.x = WgmmaRows(memory.x_bf16, 0, count, m.padded);
  if (std::exchange(wgmma_prepared, false)) {
    args.squares = memory.wgmma_squares;
    args.squares_of = static_cast<int>(config().hidden);
    args.eps = config().norm_eps;
    return args;
  }
  Check(cuda::LaunchWgmmaActivations(memory.x, nullptr, count, static_cast<int>(config().hidden), by,
                                     config().norm_eps, args.x, stream.get()));
  return args;
}

void CudaOperators::Head(int rows, bool gather) {
  marks.Mark(Op::kLogits);
  if (rows == 0) return;
  if (model.general || lora) return HeadOfGeneral(rows, gather ? memory.logit_rows : nullptr);
  const auto chosen = ChooseHead(
      {.tokens = rows, .logit_rows = rows, .deterministic = shape.deterministic, .wgmma = shape.wgmma});
  if (!chosen) return Check(Status(chosen.error()));
  switch (*chosen) {
    case HeadStrategy::kWgmma:
      return HeadByWgmma(rows, gather ? memory.logit_rows : nullptr);
    case HeadStrategy::kMatvec:
      return Multiply({.a = &model.head,
                       .x = memory.x,
                       .x_stride = config().hidden,
                       .rows = gather ? memory.logit_rows : nullptr,
                       .norm = model.norm,
                       .eps = config().norm_eps,
                       .out = memory.logits,
                       .out_stride = config().vocab},
                      rows);
  }
}

void CudaOperators::HeadByWgmma(int rows, const int32_t* of) {
  const DecoderConfig& c = config();
  const DeviceMatrix* const matrices[] = {&model.head};
  if (wgmma_prepared && !of) {  // a decode step: every token has logits
    cuda::WgmmaArgs args = NormedArgs(rows, model.head, model.norm);
    args.out = memory.logits;
    args.out_stride = c.vocab;
    return MultiplyWgmma(matrices, args);
  }
  wgmma_prepared = false;
  cuda::WgmmaArgs args;
  args.tokens = rows;
  args.x = WgmmaRows(memory.x_bf16, c.vocab, rows, model.head.padded);
  Check(cuda::LaunchWgmmaActivations(memory.x, of, rows, static_cast<int>(c.hidden), model.norm, c.norm_eps,
                                     args.x, stream.get()));
  args.out = memory.logits;
  args.out_stride = c.vocab;
  MultiplyWgmma(matrices, args);
}

void CudaOperators::HeadOfGeneral(int rows, const int32_t* of) {
  const DecoderConfig& c = config();
  const DeviceMatrix* const matrices[] = {&model.head};
  Projection product{.matrices = matrices,
                     .x = memory.x,
                     .rows = of,
                     .norm = model.norm,
                     .eps = c.norm_eps,
                     .out = memory.logits,
                     .out_stride = c.vocab};
  if (c.norm == NormKind::kLayer) {
    Check(cuda::LaunchNorm({.x = memory.x,
                            .rows = of,
                            .tokens = rows,
                            .cols = static_cast<int>(c.hidden),
                            .layer = true,
                            .weight = model.norm,
                            .bias = model.norm_bias,
                            .eps = c.norm_eps,
                            .out = memory.normed},
                           stream.get()));
    product.x = memory.normed;
    product.rows = nullptr;
    product.norm = nullptr;
  }
  constexpr LoraPart kHead[] = {LoraPart::kHead};
  const CudaLora::Product adapted{.parts = kHead,
                                  .x = product.x,
                                  .x_rows = product.rows,
                                  .cols = static_cast<int>(c.hidden),
                                  .norm = product.norm,
                                  .eps = product.eps,
                                  .outs = {{{static_cast<int>(c.vocab), memory.logits}}},
                                  .stride = c.vocab};
  if (lora) lora->Shrink(adapted, rows);
  if (wgmma_prepared && !of) {
    HeadByWgmma(rows, nullptr);
  } else {
    wgmma_prepared = false;
    Project(product, rows);
  }
  if (lora) lora->Expand(adapted, rows);
  if (!model.head_bias && c.logit_scale == 1 && c.logit_softcap == 0) return;
  Check(cuda::LaunchFinishLogits({.logits = memory.logits,
                                  .rows = rows,
                                  .vocab = static_cast<int>(c.vocab),
                                  .bias = model.head_bias,
                                  .scale = c.logit_scale,
                                  .softcap = c.logit_softcap},
                                 stream.get()));
}

}  // namespace celer
