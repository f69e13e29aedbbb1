// The rotation angles of a model: frequencies once, then cos and sin for the positions of a batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/config/decoder_config.h"

namespace celer {

class RopeTable {
 public:
  explicit RopeTable(const RopeConfig& config);

  // cos and sin: [positions, dim / 2]. lengths: [positions], how long the sequence of each is taken to be;
  // empty: no longer than before extension. Only some kinds of scaling depend on it
  // (RopeConfig::DependsOnLength).
  void Fill(std::span<const int32_t> positions, std::span<const int32_t> lengths, float* cos,
            float* sin) const;
  void Fill(std::span<const int32_t> positions, float* cos, float* sin) const {
    Fill(positions, {}, cos, sin);
  }

  // Of a sequence that is no longer than before extension.
  std::span<const float> frequencies() const { return frequencies_; }
  float attention_factor() const { return attention_factor_; }

 private:
  std::vector<float> Frequencies(double length) const;  // [dim / 2], radians per position

  RopeConfig config_;
  std::vector<float> frequencies_, long_frequencies_;
  float attention_factor_ = 1;  // multiplies cos and sin
};

// What multiplies the queries of a position.
float QueryFactor(const QueryScale& scale, int64_t position);

}  // namespace celer
