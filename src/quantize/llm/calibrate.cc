#include "quantize/llm/calibrate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "kernels/llm/attention/attention.h"
#include "kernels/llm/kv_row.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/llm/rope/rotate.h"
#include "kernels/shared/activation/activation.h"
#include "models/config/family.h"
#include "models/config/plain_layers.h"
#include "quantize/llm/matrix.h"

namespace celer {
namespace {

std::vector<float> Copy(const float* from, int64_t n) {
  return from ? std::vector<float>(from, from + n) : std::vector<float>();
}
const float* OrNone(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

const WeightView& ViewOf(const LayerWeights& layer, Projection p) {
  const WeightView* const views[] = {&layer.q,          &layer.k,        &layer.v,         &layer.o,
                                     &layer.dense.gate, &layer.dense.up, &layer.dense.down};
  return *views[static_cast<int>(p)];
}

LayerFloats LayerFloats::Of(const Model& model, int64_t layer, ThreadPool& pool) {
  LayerFloats out;
  out.Read(model, layer, pool);
  return out;
}

void LayerFloats::Read(const Model& model, int64_t layer, ThreadPool& pool) {
  const DecoderConfig& c = model.config();
  const LayerWeights& w = model.weights().layers[layer];
  for (int p = 0; p < kProjections; ++p) {
    const WeightView& view = ViewOf(w, static_cast<Projection>(p));
    Matrix& matrix = matrices[p];
    matrix.rows = view.rows;
    matrix.cols = view.cols;
    matrix.values.resize(view.rows * view.cols);
    pool.ParallelFor(view.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) DecodeWeightRow(view, r, matrix.values.data() + r * view.cols);
    });
  }
  attention_norm = Copy(w.attention_norm, c.hidden);
  ffn_norm = Copy(w.ffn_norm, c.hidden);
  q_bias = Copy(w.q_bias, w.q.rows);
  k_bias = Copy(w.k_bias, w.k.rows);
  v_bias = Copy(w.v_bias, w.v.rows);
  o_bias = Copy(w.o_bias, w.o.rows);
  gate_bias = Copy(w.gate_bias, c.intermediate);
  up_bias = Copy(w.up_bias, c.intermediate);
  down_bias = Copy(w.down_bias, c.hidden);
  q_norm = Copy(w.q_norm, c.head_dim);
  k_norm = Copy(w.k_norm, c.head_dim);
}

const char* NotCalibrated(const DecoderConfig& config, bool gguf) {
  if (const char* const what = BeyondPlainLayers(config)) return what;
  const Family* const family = FindFamily(config.family);
  // Of folders the parts of tensors are written, of GGUF files the tensors.
  return gguf && family && family->gguf_tensors ? "tensors of a family of its own" : nullptr;
}

Status CheckCalibration(const Model& model, std::span<const int32_t> tokens, int64_t window) {
  const DecoderConfig& c = model.config();
  const bool gguf = !model.weights().layers.empty() && model.weights().layers[0].q.name.starts_with("blk.");
  if (const char* const what = NotCalibrated(c, gguf))
    return Error::Unsupported(model.path(), ": calibration of a model with ", what,
                              " is not supported; quantize it without: --method rtn and no --calibration");
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.IsSparse(i))
      return Error::Unsupported(model.path(), ": calibration of a mixture of experts (layer ", i,
                                ") is not supported; quantize it without: --method rtn and no --calibration");
  if (static_cast<int64_t>(tokens.size()) < window)
    return Error::Invalid("the calibration text has ", tokens.size(), " tokens, fewer than one window of ",
                          window, "; give a longer text");
  for (const int32_t token : tokens)
    if (token < 0 || token >= c.vocab)
      return Error::Invalid("the calibration text has token ", token, " and the model ", c.vocab,
                            "; is this its tokenizer?");
  return {};
}

void EmbedTokens(const Model& model, std::span<const int32_t> tokens, float* out, ThreadPool& pool) {
  const int64_t hidden = model.config().hidden;
  pool.ParallelFor(static_cast<int64_t>(tokens.size()), 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      DecodeWeightRow(model.weights().embedding, tokens[t], out + t * hidden);
  });
}

InputStatistics HeadStatistics(const Model& model, std::span<const float> states, ThreadPool& pool) {
  constexpr int64_t kAtOnce = 512;
  const int64_t hidden = model.config().hidden, tokens = static_cast<int64_t>(states.size()) / hidden;
  InputStatistics out;
  AlignedVector<float> normed(static_cast<size_t>(kAtOnce * hidden));
  for (int64_t t = 0; t < tokens; t += kAtOnce) {
    const int64_t count = std::min(kAtOnce, tokens - t);
    RmsNorm({.x = states.data() + t * hidden,
             .weight = model.weights().norm,
             .eps = model.config().norm_eps,
             .rows = count,
             .cols = hidden,
             .out = normed.data(),
             .pool = &pool});
    out.Add(normed.data(), count, hidden, pool);
  }
  return out;
}

Error NotFinite(int64_t layer, int64_t window) {
  return Error::Invalid("layer ", layer, " gives values that are not finite for window ", window,
                        " of the calibration text; the model or the text is broken");
}

Result<Calibration> Calibration::Make(const Model& model, std::span<const int32_t> tokens, int64_t window,
                                      ThreadPool& pool) {
  CELER_RETURN_IF_ERROR(CheckCalibration(model, tokens, window));
  const DecoderConfig& c = model.config();
  Calibration out(model, pool);
  out.window_ = window;
  out.windows_ = static_cast<int64_t>(tokens.size()) / window;
  const int64_t n = out.tokens();
  out.x_.resize(n * c.hidden);
  EmbedTokens(model, tokens.first(n), out.x_.data(), pool);
  out.positions_.resize(window);
  std::iota(out.positions_.begin(), out.positions_.end(), 0);
  out.seq_start_ = {0, static_cast<int32_t>(window)};
  out.blocks_.resize(KvBlocksFor(window));
  std::iota(out.blocks_.begin(), out.blocks_.end(), 0);
  out.cos_.resize(window * c.rope.dim / 2);
  out.sin_.resize(out.cos_.size());
  RopeTable(c.rope).Fill(out.positions_, out.cos_.data(), out.sin_.data());
  const int64_t kv_cols = c.kv_heads * c.head_dim;
  out.kv_.resize(2 * KvBlocksFor(window) * kKvBlockTokens * kv_cols);
  for (auto* v : {&out.state_, &out.normed_}) v->resize(window * c.hidden);
  for (auto* v : {&out.q_, &out.attention_}) v->resize(window * c.heads * c.head_dim);
  for (auto* v : {&out.k_, &out.v_}) v->resize(window * kv_cols);
  for (auto* v : {&out.gate_, &out.up_}) v->resize(window * c.intermediate);
  return out;
}

void Calibration::Attend(const LayerFloats& layer, int64_t index) {
  const DecoderConfig& c = config_;
  const int64_t half = static_cast<int64_t>(kv_.size()) / 2, dim = c.head_dim;
  const KvLayerView kv{.k = reinterpret_cast<std::byte*>(kv_.data()),
                       .v = reinterpret_cast<std::byte*>(kv_.data() + half),
                       .dtype = DType::kF32,
                       .blocks = static_cast<int64_t>(blocks_.size()),
                       .kv_heads = c.kv_heads,
                       .head_dim = dim};
  pool_->ParallelFor(window_, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto finish = [&](float* heads, int64_t count, const std::vector<float>& norm) {
        if (!norm.empty())
          RmsNorm({.x = heads,
                   .weight = norm.data(),
                   .eps = c.norm_eps,
                   .rows = count,
                   .cols = dim,
                   .out = heads});
        const int64_t table = t * (c.rope.dim / 2);
        RotateHeads(heads, count, dim, cos_.data() + table, sin_.data() + table, c.rope.dim, c.rope.layout);
      };
      float* const k = k_.data() + t * c.kv_heads * dim;
      finish(q_.data() + t * c.heads * dim, c.heads, layer.q_norm);
      finish(k, c.kv_heads, layer.k_norm);
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        StoreKvRow(kv, kv.k, t / kKvBlockTokens, h, t % kKvBlockTokens, k + h * dim);
        StoreKvRow(kv, kv.v, t / kKvBlockTokens, h, t % kKvBlockTokens,
                   v_.data() + (t * c.kv_heads + h) * dim);
      }
    }
  });
  RaggedBatch batch;
  batch.tokens = positions_;  // their number alone counts here
  batch.positions = positions_;
  batch.seq_start = seq_start_;
  batch.block_table = blocks_;
  batch.max_blocks = static_cast<int64_t>(blocks_.size());
  celer::Attention({.batch = batch,
                    .kv = kv,
                    .q = q_.data(),
                    .heads = c.heads,
                    .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
                    .window = c.Window(index),
                    .out = attention_.data(),
                    .pool = pool_});
}

std::vector<float*> Calibration::OwnWindows() {
  std::vector<float*> out;
  for (int64_t w = 0; w < windows_; ++w) out.push_back(x_.data() + w * window_ * config_.hidden);
  return out;
}

Status Calibration::Run(const LayerFloats& layer, int64_t index, std::span<float* const> windows,
                        const Tap& tap, bool advance) {
  const DecoderConfig& c = config_;
  std::vector<PackedWeight> packed;
  for (int p = 0; p < kProjections; ++p) {
    const LayerFloats::Matrix& m = layer.matrices[p];
    packed.emplace_back(m.values.data(), m.rows, m.cols, *pool_);
  }
  const auto multiply = [&](Projection p, const float* x, const std::vector<float>& bias, const float* add,
                            float* out) {
    packed[static_cast<size_t>(p)].Multiply(x, window_, OrNone(bias), add, out);
  };
  const auto norm = [&](const std::vector<float>& weight) {
    RmsNorm({.x = state_.data(),
             .weight = weight.data(),
             .eps = c.norm_eps,
             .rows = window_,
             .cols = c.hidden,
             .out = normed_.data(),
             .pool = pool_});
  };
  const auto show = [&](LayerInput input, const AlignedVector<float>& x) {
    if (tap) tap(input, x.data(), window_, static_cast<int64_t>(x.size()) / window_);
  };
  for (size_t w = 0; w < windows.size(); ++w) {
    float* const x = windows[w];
    std::copy_n(x, window_ * c.hidden, state_.data());
    norm(layer.attention_norm);
    show(LayerInput::kQkv, normed_);
    multiply(Projection::kQ, normed_.data(), layer.q_bias, nullptr, q_.data());
    multiply(Projection::kK, normed_.data(), layer.k_bias, nullptr, k_.data());
    multiply(Projection::kV, normed_.data(), layer.v_bias, nullptr, v_.data());
    Attend(layer, index);
    show(LayerInput::kO, attention_);
    multiply(Projection::kO, attention_.data(), layer.o_bias, state_.data(), state_.data());
    norm(layer.ffn_norm);
    show(LayerInput::kGateUp, normed_);
    multiply(Projection::kGate, normed_.data(), layer.gate_bias, nullptr, gate_.data());
    multiply(Projection::kUp, normed_.data(), layer.up_bias, nullptr, up_.data());
    pool_->ParallelFor(window_, 4, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * c.intermediate;
      ActivateMul(c.activation, gate_.data() + at, up_.data() + at, gate_.data() + at,
                  (end - begin) * c.intermediate);
    });
    show(LayerInput::kDown, gate_);
    if (!advance) continue;
    multiply(Projection::kDown, gate_.data(), layer.down_bias, state_.data(), x);
    for (int64_t i = 0; i < window_ * c.hidden; ++i)
      if (!std::isfinite(x[i])) return NotFinite(index, static_cast<int64_t>(w));
  }
  return {};
}

Status Calibration::Observe(const LayerFloats& layer, int64_t index, const Tap& tap) {
  return Run(layer, index, OwnWindows(), tap, false);
}

Status Calibration::Advance(const LayerFloats& layer, int64_t index, const Tap& tap) {
  return Run(layer, index, OwnWindows(), tap, true);
}

Status Calibration::AdvanceOthers(const LayerFloats& layer, int64_t index, std::span<float* const> windows) {
  return Run(layer, index, windows, {}, true);
}

}  // namespace celer
