// What one recurrent layer remembers of a sequence: the window of its convolution, and behind it the matrices of its
// heads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/llm/delta_rule/delta_rule.h"
#include "models/config/decoder_config.h"

namespace celer {

inline int64_t ConvChannels(const RecurrentConfig& c) {
  return 2 * c.key_heads * c.key_dim + c.value_heads * c.value_dim;
}

inline int64_t ConvStateFloats(const RecurrentConfig& c) {
  return (c.conv_kernel - 1) * ConvChannels(c);
}

// Rounded up, so that the next one begins at a cache line.
inline int64_t StateFloats(const RecurrentConfig& c) {
  constexpr int64_t kLine = 16;
  const int64_t floats = ConvStateFloats(c) + DeltaStateFloats(c.key_dim, c.value_heads, c.value_dim);
  return (floats + kLine - 1) / kLine * kLine;
}

inline int64_t RecurrentLayers(const RecurrentConfig& c) {
  return std::count(c.layer.begin(), c.layer.end(), true);
}

// Of a sequence, in all layers.
inline int64_t StateBytes(const RecurrentConfig& c) {
  return c.layer.empty() ? 0 : RecurrentLayers(c) * StateFloats(c) * static_cast<int64_t>(sizeof(float));
}

}  // namespace celer
