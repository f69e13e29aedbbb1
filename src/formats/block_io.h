// Blocks are read and written through memcpy: rows of a mapped file may start at any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace celer {

template <class Block>
Block LoadBlock(const std::byte* in, int64_t index) {
  Block block;
  std::memcpy(&block, in + index * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
  return block;
}

template <class Block>
void StoreBlock(const Block& block, int64_t index, std::byte* out) {
  std::memcpy(out + index * static_cast<int64_t>(sizeof(Block)), &block, sizeof(Block));
}

// Towards zero, after clamping; NaN becomes `low`.
inline int TruncateClamped(float value, int low, int high) {
  if (!(value > static_cast<float>(low))) return low;
  if (value >= static_cast<float>(high)) return high;
  return static_cast<int>(value);
}

// To nearest, halves away from zero, after clamping; NaN becomes `low`.
inline int RoundClamped(float value, int low, int high) {
  if (!(value > static_cast<float>(low))) return low;
  if (value >= static_cast<float>(high)) return high;
  return static_cast<int>(value < 0 ? value - 0.5f : value + 0.5f);
}

inline float ReciprocalOrZero(float value) {
  return value == 0 ? 0.0f : 1.0f / value;
}

}  // namespace celer
