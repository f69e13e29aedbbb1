// The architecture of a Llama-like decoder as data. Nothing about a family is chosen at compile time: a
// family's file fills this in from a config.json or from GGUF metadata, and one forward pass runs it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "celer/limits.h"
#include "kernels/llm/gate_up/gate_up.h"
#include "kernels/llm/qkv/qkv.h"

namespace celer {

struct RopeConfig {
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kDynamic, kLongRope };

  double theta = 10000;
  RopeLayout layout = RopeLayout::kHalf;
  int64_t dim = 0;  // leading dimensions of a head that rotate
  Scaling scaling = Scaling::kNone;
  double factor = 1;
  double original_positions = 0;  // all but linear: positions of the training before extension
  double low_freq_factor = 1;     // llama3
  double high_freq_factor = 4;    // llama3
  double beta_fast = 32;          // yarn
  double beta_slow = 1;           // yarn
  bool truncate = true;           // yarn: the ramp begins and ends at whole dimensions
  double attention_factor = 1;    // yarn, longrope: multiplies cos and sin
  // longrope, [dim / 2] each: divide each frequency, the long ones in sequences beyond original_positions.
  std::vector<float> short_factors, long_factors;
  std::vector<float> freq_factors;  // GGUF's rope_freqs: divides each frequency; empty if none

  // Whether the angles of a position depend on how long its sequence is.
  bool DependsOnLength() const { return scaling == Scaling::kDynamic || scaling == Scaling::kLongRope; }
};

struct MoeConfig : ExpertShape {
  int64_t intermediate = 0;  // of one expert
  bool normalize_top = true;
  std::vector<bool> sparse_layer;  // [layers]: which layers have experts, the others are dense
};

struct DecoderConfig : ModelShape {
  std::string family;        // "llama", as in models/config/family.h
  std::string architecture;  // what the file calls it, for messages
  int64_t max_positions = 0;
  float norm_eps = 1e-5f;
  RopeConfig rope;
  bool o_bias = false;    // of the output projection
  bool mlp_bias = false;  // of gate, up and down in dense layers
  Activation activation = Activation::kSilu;
  int64_t sliding_window = 0;        // 0: full attention
  std::vector<bool> windowed_layer;  // [layers]: which layers the window applies to
  MoeConfig moe;
  std::vector<std::string> warnings;  // what the file says and nothing here uses, a sentence each

  bool IsSparse(int64_t layer) const { return moe.experts > 0 && moe.sparse_layer[layer]; }
  int64_t Window(int64_t layer) const {
    return sliding_window > 0 && windowed_layer[layer] ? sliding_window : 0;
  }
};

// One sentence if the numbers cannot be those of a model: zero, negative, absurd, or not fitting one another.
Status Validate(const DecoderConfig& config, const std::string& path);

// One sentence if the GPU's forward pass lacks something that the model needs within `context` positions.
Status CheckRunsOnGpu(const DecoderConfig& config, int64_t context);

// A Llama-like model of that shape, for benchmarks without a file.
DecoderConfig FromLlmShape(const LlmShape& shape);
// What counts for its cost (celer/limits.h).
LlmShape ToLlmShape(const DecoderConfig& config, const std::string& name);

}  // namespace celer
