#include "quantize/llm/layer/cuda_calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/calibration/window_layer/window_layer_cuda.h"
#include "models/cpu/rope.h"

namespace celer {
namespace {

constexpr int64_t kTokensAtOnce = 8192;             // enough to fill the GPU
constexpr int64_t kScoreFloats = int64_t{1} << 26;  // of attention, at once
constexpr int64_t kStrip = 2048;  // columns of a Gram matrix at once: what lies below them is left out

constexpr cudaStream_t kStream = nullptr;

Status Upload(const std::vector<float>& from, CudaLayer::Vector* to, Allocator& memory) {
  to->present = !from.empty();
  return to->present ? to->values.Upload(memory, from) : Status();
}

}  // namespace

Status CudaLayer::UploadVectors(const LayerFloats& layer, Allocator& memory) {
  const std::pair<const std::vector<float>*, Vector*> vectors[] = {{&layer.attention_norm, &attention_norm},
                                                                   {&layer.ffn_norm, &ffn_norm},
                                                                   {&layer.q_bias, &q_bias},
                                                                   {&layer.k_bias, &k_bias},
                                                                   {&layer.v_bias, &v_bias},
                                                                   {&layer.o_bias, &o_bias},
                                                                   {&layer.gate_bias, &gate_bias},
                                                                   {&layer.up_bias, &up_bias},
                                                                   {&layer.down_bias, &down_bias},
                                                                   {&layer.q_norm, &q_norm},
                                                                   {&layer.k_norm, &k_norm}};
  for (const auto& [from, to] : vectors) CELER_RETURN_IF_ERROR(celer::Upload(*from, to, memory));
  return {};
}

Status CudaLayer::UploadMatrix(const LayerFloats& layer, Projection p, Allocator& memory) {
  const LayerFloats::Matrix& from = layer[p];
  Matrix& to = matrices[static_cast<size_t>(p)];
  to.rows = from.rows;
  to.cols = from.cols;
  return to.values.Upload(memory, from.values);
}

Result<std::unique_ptr<CudaCalibration>> CudaCalibration::Make(const Model& model,
                                                               const CalibrationText& text,
                                                               cuda::GemmF32& gemm, Allocator& memory,
                                                               ThreadPool& pool) {
  CELER_RETURN_IF_ERROR(CheckCalibration(model, text.tokens, text.window));
  const DecoderConfig& c = model.config();
  std::unique_ptr<CudaCalibration> out(new CudaCalibration(c, gemm, memory));
  const int64_t window = out->window_ = text.window;
  out->windows_ = static_cast<int64_t>(text.tokens.size()) / window;
  out->at_once_ = std::clamp<int64_t>(kTokensAtOnce / window, 1, out->windows_);
  out->score_queries_ = std::clamp<int64_t>(kScoreFloats / (c.kv_heads * window), 1, window);
  const int64_t now = out->at_once_ * window, kv_cols = c.kv_heads * c.head_dim,
                q_cols = c.heads * c.head_dim;
  const std::pair<CudaArray<float>*, int64_t> arrays[] = {
      {&out->x_, out->tokens() * c.hidden},
      {&out->state_, now * c.hidden},
      {&out->normed_, now * c.hidden},
      {&out->q_, now * q_cols},
      {&out->attention_, now * q_cols},
      {&out->k_, now * kv_cols},
      {&out->v_, now * kv_cols},
      {&out->gate_, now * c.intermediate},
      {&out->up_, now * c.intermediate},
      {&out->scores_, c.kv_heads * out->score_queries_ * window}};
  for (const auto& [array, floats] : arrays) CELER_RETURN_IF_ERROR(array->Reserve(memory, floats));
  CELER_RETURN_IF_ERROR(out->not_finite_.Reserve(memory, 1));
  // Embeddings window by window, so that the host holds one.
  std::vector<float> embedded(static_cast<size_t>(window * c.hidden));
  for (int64_t w = 0; w < out->windows_; ++w) {
    EmbedTokens(model, std::span(text.tokens).subspan(w * window, window), embedded.data(), pool);
    CELER_RETURN_IF_ERROR(CudaStatus(cudaMemcpy(out->x_.get() + w * window * c.hidden, embedded.data(),
                                                embedded.size() * sizeof(float), cudaMemcpyHostToDevice),
                                     "copying embeddings to the GPU"));
  }
  std::vector<int32_t> positions(static_cast<size_t>(window));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> cos(static_cast<size_t>(window * c.rope.dim / 2)), sin(cos.size());
  RopeTable(c.rope).Fill(positions, cos.data(), sin.data());
  CELER_RETURN_IF_ERROR(out->cos_.Upload(memory, cos));
  CELER_RETURN_IF_ERROR(out->sin_.Upload(memory, sin));
  return out;
}

Status CudaCalibration::Observe(const CudaLayer& layer, int64_t index,
                                std::array<CudaGram, kLayerInputs>* grams) {
  for (int i = 0; i < kLayerInputs; ++i) {
    CudaGram& gram = (*grams)[i];
    for (int p = 0; p < kProjections; ++p)
      if (InputOf(static_cast<Projection>(p)) == static_cast<LayerInput>(i))
        gram.cols = layer.matrices[p].cols;
    CELER_RETURN_IF_ERROR(gram.sums.Reserve(memory_, gram.cols * gram.cols));
    CELER_RETURN_IF_ERROR(gram.magnitudes.Reserve(memory_, gram.cols));
    CELER_RETURN_IF_ERROR(gram.sums.Clear(gram.cols * gram.cols));
    CELER_RETURN_IF_ERROR(gram.magnitudes.Clear(gram.cols));
  }
  for (int64_t w = 0; w < windows_; w += at_once_)
    CELER_RETURN_IF_ERROR(Run(layer, index, w, std::min(w + at_once_, windows_), grams));
  return CudaStatus(cudaStreamSynchronize(kStream), "running a layer");
}

Status CudaCalibration::Advance(const CudaLayer& layer, int64_t index) {
  const int64_t hidden = config_.hidden;
  for (int64_t w = 0; w < windows_; w += at_once_) {
    CELER_RETURN_IF_ERROR(Run(layer, index, w, std::min(w + at_once_, windows_), nullptr));
    CELER_RETURN_IF_ERROR(
        Multiply(layer, Projection::kDown, gate_.get(), layer.down_bias, true, state_.get()));
    CELER_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(x_.get() + w * window_ * hidden, state_.get(),
                                                     static_cast<size_t>(now_ * hidden) * sizeof(float),
                                                     cudaMemcpyDeviceToDevice, kStream),
                                     "copying hidden states"));
  }
  unsigned long long first = ~0ULL;
  CELER_RETURN_IF_ERROR(not_finite_.Upload(memory_, std::span(&first, 1)));
  CELER_RETURN_IF_ERROR(
      CudaStatus(cuda::LaunchFirstNotFinite(x_.get(), tokens() * hidden, not_finite_.get(), kStream),
                 "looking for NaN"));
  CELER_RETURN_IF_ERROR(not_finite_.Download(std::span(&first, 1)));
  if (first == ~0ULL) return {};
  return NotFinite(index, static_cast<int64_t>(first) / hidden / window_);
}

Status CudaCalibration::Run(const CudaLayer& layer, int64_t index, int64_t begin, int64_t end,
                            std::array<CudaGram, kLayerInputs>* grams) {
  const DecoderConfig& c = config_;
  now_ = (end - begin) * window_;
  const auto norm = [&](const CudaLayer::Vector& weight) {
    return CudaStatus(cuda::LaunchWindowsNorm(state_.get(), weight.get(), c.norm_eps, now_, c.hidden,
                                              normed_.get(), kStream),
                      "norm");
  };
  const auto see = [&](LayerInput input, const float* x) {
    return grams ? AddTo(&(*grams)[static_cast<size_t>(input)], x) : Status();
  };
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(state_.get(), x_.get() + begin * window_ * c.hidden,
                                                   static_cast<size_t>(now_ * c.hidden) * sizeof(float),
                                                   cudaMemcpyDeviceToDevice, kStream),
                                   "copying hidden states"));
  CELER_RETURN_IF_ERROR(norm(layer.attention_norm));
  CELER_RETURN_IF_ERROR(see(LayerInput::kQkv, normed_.get()));
  CELER_RETURN_IF_ERROR(Multiply(layer, Projection::kQ, normed_.get(), layer.q_bias, false, q_.get()));
  CELER_RETURN_IF_ERROR(Multiply(layer, Projection::kK, normed_.get(), layer.k_bias, false, k_.get()));
  CELER_RETURN_IF_ERROR(Multiply(layer, Projection::kV, normed_.get(), layer.v_bias, false, v_.get()));
  CELER_RETURN_IF_ERROR(Attend(layer, index));
  CELER_RETURN_IF_ERROR(see(LayerInput::kO, attention_.get()));
  CELER_RETURN_IF_ERROR(Multiply(layer, Projection::kO, attention_.get(), layer.o_bias, true, state_.get()));
  CELER_RETURN_IF_ERROR(norm(layer.ffn_norm));
  CELER_RETURN_IF_ERROR(see(LayerInput::kGateUp, normed_.get()));
  CELER_RETURN_IF_ERROR(
      Multiply(layer, Projection::kGate, normed_.get(), layer.gate_bias, false, gate_.get()));
  CELER_RETURN_IF_ERROR(Multiply(layer, Projection::kUp, normed_.get(), layer.up_bias, false, up_.get()));
  CELER_RETURN_IF_ERROR(CudaStatus(
      cuda::LaunchWindowsActivate(c.activation, gate_.get(), up_.get(), now_ * c.intermediate, kStream),
      "activation"));
  return see(LayerInput::kDown, gate_.get());
}

Status CudaCalibration::Multiply(const CudaLayer& layer, Projection p, const float* x,
                                 const CudaLayer::Vector& bias, bool add, float* out) {
  const CudaLayer::Matrix& w = layer.matrices[static_cast<size_t>(p)];
  CELER_RETURN_IF_ERROR(gemm_.Run({.m = now_,
                                   .n = w.rows,
                                   .k = w.cols,
                                   .a = {.data = x, .stride = w.cols},
                                   .b = {.data = w.values.get(), .stride = w.cols, .transposed = true},
                                   .out = out,
                                   .out_stride = w.rows,
                                   .add = add},
                                  kStream));
  if (!bias.present) return {};
  return CudaStatus(cuda::LaunchWindowsBias(out, bias.get(), now_, w.rows, kStream), "bias");
}

Status CudaCalibration::Attend(const CudaLayer& layer, int64_t index) {
  const DecoderConfig& c = config_;
  const auto rotate = [&](float* heads, int64_t count, const CudaLayer::Vector& norm) {
    return CudaStatus(cuda::LaunchWindowsRotate({.heads = heads,
                                                 .tokens = now_,
                                                 .window = window_,
                                                 .count = static_cast<int>(count),
                                                 .dim = static_cast<int>(c.head_dim),
                                                 .norm = norm.get(),
                                                 .eps = c.norm_eps,
                                                 .cos = cos_.get(),
                                                 .sin = sin_.get(),
                                                 .rope_dim = static_cast<int>(c.rope.dim),
                                                 .layout = c.rope.layout},
                                                kStream),
                      "rotating");
  };
  CELER_RETURN_IF_ERROR(rotate(q_.get(), c.heads, layer.q_norm));
  CELER_RETURN_IF_ERROR(rotate(k_.get(), c.kv_heads, layer.k_norm));
  for (int64_t w = 0; w < now_ / window_; ++w)
    for (int64_t g = 0; g < c.heads / c.kv_heads; ++g)
      for (int64_t q = 0; q < window_; q += score_queries_)
        CELER_RETURN_IF_ERROR(AttendPart(index, w, g, q, std::min(q + score_queries_, window_)));
  return {};
}

Status CudaCalibration::AttendPart(int64_t index, int64_t window, int64_t g, int64_t first, int64_t last) {
  const DecoderConfig& c = config_;
  const int64_t dim = c.head_dim, q_cols = c.heads * dim, kv_cols = c.kv_heads * dim,
                group = c.heads / c.kv_heads, queries = last - first;
  // Keys of a group's first head to those of the next: one batch over all groups.
  const int64_t q_at = (window * window_ + first) * q_cols + g * dim, kv_at = window * window_ * kv_cols;
  CELER_RETURN_IF_ERROR(
      gemm_.Run({.m = queries,
                 .n = last,
                 .k = dim,
                 .a = {.data = q_.get() + q_at, .stride = q_cols, .batch_stride = group * dim},
                 .b = {.data = k_.get() + kv_at, .stride = kv_cols, .transposed = true, .batch_stride = dim},
                 .out = scores_.get(),
                 .out_stride = last,
                 .out_batch_stride = queries * last,
                 .batch = c.kv_heads},
                kStream));
  CELER_RETURN_IF_ERROR(
      CudaStatus(cuda::LaunchWindowsSoftmax({.scores = scores_.get(),
                                             .batch = c.kv_heads,
                                             .queries = queries,
                                             .keys = last,
                                             .first = first,
                                             .sliding = c.Window(index),
                                             .scale = 1.0f / std::sqrt(static_cast<float>(dim))},
                                            kStream),
                 "softmax"));
  return gemm_.Run({.m = queries,
                    .n = dim,
                    .k = last,
                    .a = {.data = scores_.get(), .stride = last, .batch_stride = queries * last},
                    .b = {.data = v_.get() + kv_at, .stride = kv_cols, .batch_stride = dim},
                    .out = attention_.get() + q_at,
                    .out_stride = q_cols,
                    .out_batch_stride = group * dim,
                    .batch = c.kv_heads},
                   kStream);
}

Result<AlignedVector<float>> CudaCalibration::States() const {
  AlignedVector<float> out(static_cast<size_t>(tokens() * config_.hidden));
  CELER_RETURN_IF_ERROR(x_.Download(out));
  return out;
}

Status CudaCalibration::AddTo(CudaGram* gram, const float* x) {
  const int64_t cols = gram->cols;
  for (int64_t first = 0; first < cols; first += kStrip) {
    const int64_t n = std::min(kStrip, cols - first);
    CELER_RETURN_IF_ERROR(gemm_.Run({.m = first + n,
                                     .n = n,
                                     .k = now_,
                                     .a = {.data = x, .stride = cols, .transposed = true},
                                     .b = {.data = x + first, .stride = cols},
                                     .out = gram->sums.get() + first,
                                     .out_stride = cols,
                                     .add = true},
                                    kStream));
  }
  return CudaStatus(cuda::LaunchColumnMagnitudes(x, now_, cols, gram->magnitudes.get(), kStream),
                    "summing magnitudes");
}

}  // namespace celer
