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
  }
}

void CudaDecoder::Impl::LayerWide(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer) {
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
  store(cuda::WideEpilogue::kStore, qkv_rows, qkv_width);
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  MultiplyWide(projections, args);
  FinishQkvRows(w, batch);
  Mark(Op::kAttention);
  Attention(w, batch, layer);
  Mark(Op::kOutput);
  activations(attention, q_width, w.o, nullptr, c.hidden);
  store(cuda::WideEpilogue::kAdd, x, c.hidden);
  const DeviceMatrix* const output[] = {&w.o};
  MultiplyWide(output, args);
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

void CudaDecoder::Impl::LogitsWide(int rows, const int32_t* of) {
  const DecoderConfig& c = config;
  cuda::WideArgs args;
  args.tokens = rows;
  args.x = WideRows(x_bf16, c.vocab, rows, head.padded);
  Check(cuda::LaunchWideActivations(x, of, rows, static_cast<int>(c.hidden), norm, c.norm_eps, args.x,
                                    stream->get()));
  args.out = logits;
  args.out_stride = c.vocab;
  const DeviceMatrix* const matrices[] = {&head};
  MultiplyWide(matrices, args);
}

}  // namespace celer
