// The rotation angles of a model: frequencies once, then cos and sin for the positions of a batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/decoder_config.h"

namespace celer {

class RopeTable {
 public:
  explicit RopeTable(const RopeConfig& config);

  // cos and sin: [positions, dim / 2].
  void Fill(std::span<const int32_t> positions, float* cos, float* sin) const;
  std::span<const float> frequencies() const { return frequencies_; }
  float attention_factor() const { return attention_factor_; }

 private:
  std::vector<float> frequencies_;  // [dim / 2], radians per position
  float attention_factor_ = 1;      // multiplies cos and sin (yarn)
};

}  // namespace celer
