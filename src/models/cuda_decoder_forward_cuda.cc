// CudaDecoder's forward pass: the operators of a layer, for a few tokens and for many.
#include <algorithm>
#include <cmath>

#include "kernels/embed/embed_cuda.h"
#include "kernels/gate_up/gate_up_cuda.h"
#include "kernels/matmul/matvec_cuda.h"
#include "kernels/qkv/qkv_cuda.h"
#include "models/cuda_decoder_impl.h"

namespace celer {
namespace {

// One matrix of three whose rows follow each other in memory; none if they do not.
DeviceMatrix Below(const DeviceMatrix& a, const DeviceMatrix& b, const DeviceMatrix& c) {
  const auto follows = [](const DeviceMatrix& first, const DeviceMatrix& second) {
    return SameForm(first, second) && first.rows % 8 == 0 && second.data == first.data + first.data_bytes() &&
           (!first.scales || second.scales == first.scales + (first.bytes() - first.data_bytes()));
  };
  DeviceMatrix all = a;
  all.rows = a.rows + b.rows + c.rows;
  return follows(a, b) && follows(b, c) ? all : DeviceMatrix();
}

}  // namespace

void CudaDecoder::Impl::Multiply(const Product& p, int tokens_now) {
  // The activations of a few tokens fit into shared memory; a wide matrix takes fewer of them.
  int at_once = kMaxMatvecTokens;
  while (at_once > 1 && !cuda::MatvecFits(p.a->format, p.a->padded, at_once)) --at_once;
  for (int first = 0; first < tokens_now; first += at_once) {
    cuda::MatvecArgs args;
    args.a = *p.a;
    args.tokens = std::min(at_once, tokens_now - first);
    args.x = p.rows ? p.x : p.x + first * p.x_stride;
    args.rows = p.rows ? p.rows + first : nullptr;
    args.x_stride = p.x_stride;
    args.norm = p.norm;
    args.eps = config.norm_eps;
    args.a_bias = p.bias;
    args.out = p.out + first * p.out_stride;
    args.residual = p.residual ? p.residual + first * p.out_stride : nullptr;
    args.out_stride = p.out_stride;
    Check(cuda::LaunchMatvec(args, stream->get()));
  }
}

cuda::MatvecArgs CudaDecoder::Impl::QkvArgs(const DeviceLayer& w, const cuda::DeviceBatch& batch) const {
  const DecoderConfig& c = config;
  cuda::MatvecArgs args;
  args.epilogue = cuda::Epilogue::kQkv;
  args.a = w.q, args.b = w.k, args.c = w.v;
  args.a_bias = w.q_bias, args.b_bias = w.k_bias, args.c_bias = w.v_bias;
  args.x = x;
  args.x_stride = c.hidden;
  args.tokens = batch.count;
  args.norm = w.attention_norm;
  args.eps = c.norm_eps;
  args.out = q;
  args.out_stride = c.heads * c.head_dim;
  args.batch = batch;
  args.kv = w.kv;
  args.rope_dim = static_cast<int>(c.rope.dim);
  args.rope_cos = rope_cos;
  args.rope_sin = rope_sin;
  return args;
}

cuda::MatvecArgs CudaDecoder::Impl::GateUpArgs(const DeviceLayer& w, int tokens_now) const {
  const DecoderConfig& c = config;
  cuda::MatvecArgs args;
  args.epilogue = cuda::Epilogue::kGateUp;
  args.a = w.gate, args.b = w.up;
  args.x = x;
  args.x_stride = c.hidden;
  args.tokens = tokens_now;
  args.norm = w.ffn_norm;
  args.eps = c.norm_eps;
  args.activation = static_cast<cuda::DeviceActivation>(c.activation);
  args.out = mid;
  args.out_stride = w.gate.rows;
  return args;
}

cuda::DeviceAttentionArgs CudaDecoder::Impl::AttentionArgs(const DeviceLayer& w,
                                                           const cuda::DeviceBatch& batch,
                                                           int64_t layer) const {
  const DecoderConfig& c = config;
  cuda::DeviceAttentionArgs args;
  args.batch = batch;
  args.kv = w.kv;
  args.q = q;
  args.heads = static_cast<int>(c.heads);
  args.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  args.window = static_cast<int>(c.Window(layer));
  args.out = attention;
  args.partial = partial;
  args.tickets = attention_tickets;
  args.splits = cuda::AttentionSplits(args.heads, w.kv.kv_heads);
  return args;
}

void CudaDecoder::Impl::Qkv(const DeviceLayer& w, const cuda::DeviceBatch& batch) {
  const DecoderConfig& c = config;
  const int dim = static_cast<int>(c.head_dim), rope_dim = static_cast<int>(c.rope.dim);
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  // An i8 row needs its largest value first.
  if (batch.count <= kMaxMatvecTokens && !w.q_norm && w.kv.dtype != DType::kI8 && SameForm(w.q, w.k) &&
      SameForm(w.q, w.v) && cuda::CanFuseRope(dim, rope_dim) &&
      cuda::MatvecFits(w.q.format, w.q.padded, batch.count)) {
    return Check(cuda::LaunchMatvec(QkvArgs(w, batch), stream->get()));
  }
  if (const DeviceMatrix all = Below(w.q, w.k, w.v); all && qkv_rows) {
    Multiply({.a = &all,
              .x = x,
              .x_stride = c.hidden,
              .norm = w.attention_norm,
              .out = qkv_rows,
              .out_stride = q_width + 2 * kv_width},
             batch.count);
    return FinishQkvRows(w, batch);
  }
  const Product base{.x = x, .x_stride = c.hidden, .norm = w.attention_norm};
  const auto project = [&](const DeviceMatrix& m, const float* bias, float* out, int64_t width) {
    Product p = base;
    p.a = &m, p.bias = bias, p.out = out, p.out_stride = width;
    Multiply(p, batch.count);
  };
  project(w.q, w.q_bias, q, q_width);
  project(w.k, w.k_bias, k, kv_width);
  project(w.v, w.v_bias, v, kv_width);
  cuda::FinishQkvArgs finish;
  finish.batch = batch;
  finish.kv = w.kv;
  finish.q = q, finish.k = k, finish.v = v;
  finish.q_out = q;
  finish.q_stride = q_width, finish.kv_stride = kv_width;
  finish.heads = static_cast<int>(c.heads);
  finish.q_norm = w.q_norm, finish.k_norm = w.k_norm;
  finish.eps = c.norm_eps;
  finish.rope_dim = rope_dim;
  finish.rope_cos = rope_cos, finish.rope_sin = rope_sin;
  Check(cuda::LaunchFinishQkv(finish, stream->get()));
}

// Matrices of one width, below each other.
void CudaDecoder::Impl::Unpack(std::span<const DeviceMatrix* const> matrices) {
  const size_t slot = next_unpack;
  next_unpack ^= 1;
  Check(unpack_stream->WaitFor(*multiply_done[slot]));
  int64_t rows = 0;
  for (const DeviceMatrix* m : matrices) {
    Check(cuda::LaunchUnpack(*m, unpacked[slot] + 2 * rows * m->padded, unpack_stream->get()));
    rows += m->rows;
  }
  Check(unpack_done[slot]->Record(*unpack_stream));
}

void CudaDecoder::Impl::UnpackPart(int64_t layer, int part) {
  if (layer >= config.layers) return;
  const DeviceLayer& w = layers[static_cast<size_t>(layer)];
  const DeviceMatrix* const all[] = {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down};
  constexpr size_t kBegin[] = {0, 3, 4, 6, 7};
  const auto i = static_cast<size_t>(part);
  Unpack(std::span(all).subspan(kBegin[i], kBegin[i + 1] - kBegin[i]));
}

// Multiplies with what was unpacked for these matrices.
void CudaDecoder::Impl::MultiplyByGemm(std::span<const DeviceMatrix* const> matrices, const std::byte* x_rows,
                                       int64_t tokens_now, void* out, bool f32_out, int64_t out_stride,
                                       bool add) {
  int64_t rows = 0;
  for (const DeviceMatrix* m : matrices) rows += m->rows;
  const size_t slot = next_multiply;
  next_multiply ^= 1;
  Check(stream->WaitFor(*unpack_done[slot]));
  Check(gemm->Run(unpacked[slot], x_rows, rows, tokens_now, matrices[0]->padded, out, f32_out, out_stride,
                  add, stream->get()));
  Check(multiply_done[slot]->Record(*stream));
}

// q, k and v from the rows of their common product.
void CudaDecoder::Impl::FinishQkvRows(const DeviceLayer& w, const cuda::DeviceBatch& batch, bool narrow_q,
                                      bool narrow_rows) {
  const DecoderConfig& c = config;
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const int64_t qkv_width = q_width + 2 * kv_width;
  cuda::FinishQkvArgs finish;
  finish.batch = batch;
  finish.kv = w.kv;
  const auto column = [&](int64_t i) {
    return reinterpret_cast<const std::byte*>(qkv_rows) + i * (narrow_rows ? 2 : 4);
  };
  finish.q = column(0), finish.k = column(q_width), finish.v = column(q_width + kv_width);
  finish.narrow_in = narrow_rows;
  finish.q_stride = finish.kv_stride = qkv_width;
  finish.q_out = q;
  if (narrow_q) finish.narrow_q_out = q;
  finish.q_bias = w.q_bias, finish.k_bias = w.k_bias, finish.v_bias = w.v_bias;
  finish.heads = static_cast<int>(c.heads);
  finish.q_norm = w.q_norm, finish.k_norm = w.k_norm;
  finish.eps = c.norm_eps;
  finish.rope_dim = static_cast<int>(c.rope.dim);
  finish.rope_cos = rope_cos, finish.rope_sin = rope_sin;
  Check(cuda::LaunchFinishQkv(finish, stream->get()));
}

// The five operators for many tokens at once.
void CudaDecoder::Impl::LayerByGemm(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer) {
  const DecoderConfig& c = config;
  const int64_t n = batch.count, q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const int64_t qkv_width = q_width + 2 * kv_width;
  const auto to_bf16 = [&](const float* from, int64_t cols, int padded, const float* by) {
    Check(cuda::LaunchToBf16(from, n, static_cast<int>(cols), padded, by, c.norm_eps, x_bf16, stream->get()));
  };
  const bool flash = UsesFlash(w, batch), direct = flash && AttentionWritesBf16(w, batch);
  UnpackPart(layer, 1);
  Mark(Op::kQkv);
  to_bf16(x, c.hidden, w.q.padded, w.attention_norm);
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  MultiplyByGemm(projections, x_bf16, n, qkv_rows, true, qkv_width, false);
  w.sparse() ? UnpackPart(layer + 1, 0) : UnpackPart(layer, 2);  // experts are not unpacked
  FinishQkvRows(w, batch, flash);
  Mark(Op::kAttention);
  Attention(w, batch, layer, {.narrow_q = flash, .rows = direct ? x_bf16 : nullptr});
  Mark(Op::kOutput);
  if (!direct) to_bf16(attention, q_width, w.o.padded, nullptr);
  const DeviceMatrix* const output[] = {&w.o};
  MultiplyByGemm(output, x_bf16, n, x, true, c.hidden, true);
  if (w.sparse()) return Moe(w, batch.count);
  UnpackPart(layer, 3);
  Mark(Op::kGateUp);
  to_bf16(x, c.hidden, w.gate.padded, w.ffn_norm);
  const DeviceMatrix* const gate_up[] = {&w.gate, &w.up};
  MultiplyByGemm(gate_up, x_bf16, n, gate_up_bf16, false, 2 * c.intermediate, false);
  Check(cuda::LaunchActivateBf16(gate_up_bf16, n, static_cast<int>(c.intermediate), w.down.padded,
                                 static_cast<cuda::DeviceActivation>(c.activation), mid_bf16, stream->get()));
  UnpackPart(layer + 1, 0);
  Mark(Op::kDown);
  const DeviceMatrix* const down[] = {&w.down};
  MultiplyByGemm(down, mid_bf16, n, x, true, c.hidden, true);
}

void CudaDecoder::Impl::Attention(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer,
                                  const AttentionForm& form) {
  cuda::DeviceAttentionArgs args = AttentionArgs(w, batch, layer);
  args.decode = longest == 1;
  if (form.narrow_q) args.narrow_q = q;
  args.wide = form.wide;
  args.rows = form.rows;
  args.rows_width = w.o.padded;
  if (UsesFlash(w, batch))
    return Check(cuda::LaunchFlashAttention({.base = args,
                                             .seq_start = seq_start,
                                             .sequences = static_cast<int>(sequences),
                                             .longest = static_cast<int>(longest)},
                                            stream->get()));
  Check(cuda::LaunchAttention(args, stream->get()));
}

void CudaDecoder::Impl::GateUp(const DeviceLayer& w, int tokens_now) {
  const DecoderConfig& c = config;
  const auto activation = static_cast<cuda::DeviceActivation>(c.activation);
  if (tokens_now <= kMaxMatvecTokens && SameForm(w.gate, w.up) &&
      cuda::MatvecFits(w.gate.format, w.gate.padded, tokens_now)) {
    return Check(cuda::LaunchMatvec(GateUpArgs(w, tokens_now), stream->get()));
  }
  Product p{
      .a = &w.gate, .x = x, .x_stride = c.hidden, .norm = w.ffn_norm, .out = mid, .out_stride = w.gate.rows};
  Multiply(p, tokens_now);
  p.a = &w.up, p.out = up;
  Multiply(p, tokens_now);
  Check(cuda::LaunchActivate(mid, up, mid, int64_t{tokens_now} * w.gate.rows, activation, stream->get()));
}

cuda::DecodeStepArgs CudaDecoder::Impl::StepArgs(int count) const {
  cuda::DecodeStepArgs args;
  args.layers = step_layers;
  args.batch = Batch(count);
  args.heads = static_cast<int>(config.heads);
  args.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  args.embedding = embedding;
  args.head.a = head;
  args.head.norm = norm;
  args.head.eps = config.norm_eps;
  args.head.out = logits;
  args.head.out_stride = config.vocab;
  args.x = x;
  return args;
}

// `rows` rows of logits: of the tokens that logit_rows names, or of the first ones.
void CudaDecoder::Impl::Run(int count, int rows, bool gather) {
  const DecoderConfig& c = config;
  const cuda::DeviceBatch batch = Batch(count);
  const bool one_kernel = !gather && UsesWholeStep(count) && UsesBatchStep(count);
  wide_prepared = false;
  Mark(Op::kEmbed);
  Check(cuda::LaunchEmbed(
      {.tokens = tokens,
       .count = count,
       .table = embedding,
       .out = x,
       .step = one_kernel ? cuda::DecodeBatchCounter(StepArgs(count), batch_memory) : nullptr},
      stream->get()));
  if (one_kernel) Check(cuda::LaunchDecodeBatch(StepArgs(count), batch_memory, stream->get()));
  if (UsesGemm(count)) {  // both places are free from here on
    next_unpack = next_multiply = 0;
    for (std::optional<Event>& event : multiply_done) Check(event->Record(*stream));
    UnpackPart(0, 0);
  }
  for (int64_t i = 0; i < c.layers && !one_kernel; ++i) {
    const DeviceLayer& w = layers[static_cast<size_t>(i)];
    if (UsesWide(count)) {
      LayerWide(w, batch, i);
      continue;
    }
    if (UsesGemm(count)) {
      LayerByGemm(w, batch, i);
      continue;
    }
    Mark(Op::kQkv);
    Qkv(w, batch);
    Mark(Op::kAttention);
    Attention(w, batch, i);
    Mark(Op::kOutput);
    Multiply({.a = &w.o,
              .x = attention,
              .x_stride = c.heads * c.head_dim,
              .residual = x,
              .out = x,
              .out_stride = c.hidden},
             count);
    if (w.sparse()) {
      Moe(w, count);
      continue;
    }
    Mark(Op::kGateUp);
    GateUp(w, count);
    Mark(Op::kDown);
    Multiply(
        {.a = &w.down, .x = mid, .x_stride = c.intermediate, .residual = x, .out = x, .out_stride = c.hidden},
        count);
  }
  MultiplyHead(rows, gather);
}

void CudaDecoder::Impl::MultiplyHead(int rows, bool gather) {
  Mark(Op::kLogits);
  if (UsesWide(rows)) return LogitsWide(rows, gather ? logit_rows : nullptr);
  if (rows > 0)
    Multiply({.a = &head,
              .x = x,
              .x_stride = config.hidden,
              .rows = gather ? logit_rows : nullptr,
              .norm = norm,
              .out = logits,
              .out_stride = config.vocab},
             rows);
}

}  // namespace celer
