// Calibration statistics: calibration text runs through the model layer by layer, in f32, and the inputs of
// each matrix are handed to a tap (observer). One layer is in memory at a time, beside the hidden states of
// all tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/aligned_vector.h"
#include "device/thread_pool.h"
#include "models/cpu/rope.h"
#include "models/load/model.h"
#include "quantize/llm/matrix.h"

namespace celer {

// The four inputs that the seven matrices of a dense layer share.
enum class LayerInput : uint8_t { kQkv, kO, kGateUp, kDown };
inline constexpr int kLayerInputs = 4;

// The seven matrices in a fixed order.
enum class Projection : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr int kProjections = 7;
constexpr LayerInput InputOf(Projection p) {
  return p <= Projection::kV    ? LayerInput::kQkv
         : p == Projection::kO  ? LayerInput::kO
         : p <= Projection::kUp ? LayerInput::kGateUp
                                : LayerInput::kDown;
}
const WeightView& ViewOf(const LayerWeights& layer, Projection p);

// One layer as floats that may be changed.
struct LayerFloats {
  struct Matrix {
    int64_t rows = 0, cols = 0;
    AlignedVector<float> values;  // [rows, cols]
  };
  Matrix matrices[kProjections];
  std::vector<float> attention_norm, ffn_norm;
  std::vector<float> q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;  // each may be empty
  std::vector<float> q_norm, k_norm;                                                 // likewise

  static LayerFloats Of(const Model& model, int64_t layer, ThreadPool& pool);
  // The same over what is here: memory is taken once for layers of one shape.
  void Read(const Model& model, int64_t layer, ThreadPool& pool);
  Matrix& operator[](Projection p) { return matrices[static_cast<int>(p)]; }
  const Matrix& operator[](Projection p) const { return matrices[static_cast<int>(p)]; }
};

// What of a model the calibration does not know; nullptr: nothing.
const char* NotCalibrated(const DecoderConfig& config, bool gguf);

// An error if the text cannot be used: it is shorter than a window, or has tokens that the model does not
// know; or if the model has experts.
Status CheckCalibration(const Model& model, std::span<const int32_t> tokens, int64_t window);
// Rows of the embedding, [tokens, hidden].
void EmbedTokens(const Model& model, std::span<const int32_t> tokens, float* out, ThreadPool& pool);

// The sums over what the head reads: hidden states behind the last layer [tokens, hidden], normed.
InputStatistics HeadStatistics(const Model& model, std::span<const float> states, ThreadPool& pool);

// The error for hidden states behind a layer that are not finite.
Error NotFinite(int64_t layer, int64_t window);

class Calibration {
 public:
  // Windows of `window` tokens each, one after the other. The model is loaded without packing, and dense.
  static Result<Calibration> Make(const Model& model, std::span<const int32_t> tokens, int64_t window,
                                  ThreadPool& pool);

  int64_t windows() const { return windows_; }
  int64_t tokens() const { return windows_ * window_; }

  // Sees [tokens, cols] of one input of the layer, window by window.
  using Tap = std::function<void(LayerInput input, const float* x, int64_t tokens, int64_t cols)>;

  // Runs all windows through a layer without changing the hidden states: the tap sees its inputs.
  Status Observe(const LayerFloats& layer, int64_t index, const Tap& tap);
  // The same, and the hidden states become those behind the layer. An error if they are not finite.
  Status Advance(const LayerFloats& layer, int64_t index, const Tap& tap = {});
  // The same for the hidden states of somebody else, each [window, hidden]: streams with another
  // quantization.
  Status AdvanceOthers(const LayerFloats& layer, int64_t index, std::span<float* const> windows);

  std::span<const float> states() const { return x_; }  // [tokens, hidden]

 private:
  Calibration(const Model& model, ThreadPool& pool) : config_(model.config()), pool_(&pool) {}
  Status Run(const LayerFloats& layer, int64_t index, std::span<float* const> windows, const Tap& tap,
             bool advance);
  std::vector<float*> OwnWindows();
  // Keys and values of one window to the KV, and attention over it.
  void Attend(const LayerFloats& layer, int64_t index);

  const DecoderConfig& config_;
  ThreadPool* pool_;
  int64_t window_ = 0, windows_ = 0;
  AlignedVector<float> x_;
  std::vector<float> cos_, sin_;
  std::vector<int32_t> positions_, seq_start_, blocks_;
  AlignedVector<float> kv_;
  // Of one window.
  AlignedVector<float> state_, normed_, q_, k_, v_, attention_, gate_, up_;
};

}  // namespace celer
