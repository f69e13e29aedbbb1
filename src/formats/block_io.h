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

// Other codes for blocks that keep what else they hold: pack(codes, &block) puts a block's codes into it.
template <class Block, class Pack>
void ReplaceCodes(const uint8_t* codes, int64_t blocks, std::byte* out, const Pack& pack) {
  for (int64_t b = 0; b < blocks; ++b, codes += Block::kElements) {
    auto block = LoadBlock<Block>(out, b);
    pack(codes, &block);
    StoreBlock(block, b, out);
  }
}

// 32 codes of four bits: element j in the lower half of byte j, j + 16 in the upper.
inline void PackNibbles(const uint8_t* codes, uint8_t (&qs)[16]) {
  for (int j = 0; j < 16; ++j) qs[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}
// 32 codes of five bits: the fifth ones apart, bit j of a word for element j.
inline void PackFives(const uint8_t* codes, uint8_t (&qs)[16], uint8_t (&qh)[4]) {
  PackNibbles(codes, qs);
  uint32_t fifth = 0;
  for (int j = 0; j < 32; ++j) fifth |= static_cast<uint32_t>(codes[j] >> 4) << j;
  std::memcpy(qh, &fifth, sizeof(fifth));
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
