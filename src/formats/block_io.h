// What the structs of the block formats are made of.
// Blocks are read and written through memcpy: rows of a mapped file may start at any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

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

// 32 columns of a row whose integers fit a byte, and whose scales are floats or belong to 16 columns: w = scale[column / 16]
// * value[column], bit for bit what the format says.
struct Scaled32 {
  float scale[2];
  int8_t value[32];
};

// `bits` bits of a word, from bit `shift` on. `value` fits them.
constexpr int GetBits(int word, int shift, int bits) {
  return word >> shift & ((1 << bits) - 1);
}
template <class Word>
constexpr void SetBits(Word* word, int shift, int bits, int value) {
  *word = static_cast<Word>((*word & ~(((1 << bits) - 1) << shift)) | value << shift);
}

// Towards zero, after clamping; NaN becomes `low`. No branches, so that loops over it become vectors.
inline int TruncateClamped(float value, int low, int high) {
  const float floor = static_cast<float>(low), ceiling = static_cast<float>(high);
  value = value > floor ? value : floor;
  value = value < ceiling ? value : ceiling;
  return static_cast<int>(value);
}

// To nearest, halves away from zero, after clamping; NaN becomes `low`. Not value + 0.5: the largest float
// below 0.5 would round up.
inline int RoundClamped(float value, int low, int high) {
  const float floor = static_cast<float>(low), ceiling = static_cast<float>(high);
  value = value > floor ? value : floor;
  value = value < ceiling ? value : ceiling;
  const int whole = static_cast<int>(value);
  const float rest = value - static_cast<float>(whole);
  return whole + static_cast<int>(rest >= 0.5f) - static_cast<int>(rest <= -0.5f);
}

inline float ReciprocalOrZero(float value) {
  return value == 0 ? 0.0f : 1.0f / value;
}

}  // namespace celer
