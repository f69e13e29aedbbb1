// One row per format that a file can hold: how it is read and written, and what the other modules have to
// know of it. Block formats get theirs from their struct (blocks.h, scaled_blocks.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "formats/block_io.h"

namespace celer {

// The integers of a block and what scales them, as blocks.h says.
struct UnpackedBlock {
  uint16_t scale, min;   // f16
  int8_t sub_scale[16];  // of super-blocks
  uint8_t sub_min[16];
  int8_t value[256];
};

struct Codec {
  DType dtype;
  // `blocks` blocks, one after another, at any address. encode is nullptr for types that are only read.
  void (*decode)(const std::byte* in, int64_t blocks, float* out);
  void (*encode)(const float* in, int64_t blocks, std::byte* out, const float* importance);

  // The rest is of block formats; plain types have bits = 0. Those of scaled_blocks.h have eight, and neither codes nor
  // unpack.
  int bits = 0;  // of a value, which is signed if there is no minimum
  bool has_min = false;
  int group = 0;               // columns that share a scale
  int subs = 0;                // groups of a super-block; 0: plain blocks
  int levels = 0;              // 0: not evenly spaced
  int reach = 0;               // a weight is at most this many times the larger of its block's f16 numbers
  DType narrow = DType::kF16;  // for rows that are no multiple of the block
  void (*set_codes)(const uint8_t* codes, int64_t blocks, std::byte* out) = nullptr;
  void (*unpack)(const std::byte* in, int64_t block, UnpackedBlock* out) = nullptr;
  // Columns 32b to 32b + 31 of a row, of formats of scaled_blocks.h, and of blocks.h with groups of 32 and no minimum.
  void (*unpack32)(const std::byte* row, int64_t b, Scaled32* out) = nullptr;
  // The largest of the blocks' f16 numbers, as bits without the sign: infinity and NaN are above all.
  uint16_t (*largest_scale)(const std::byte* in, int64_t blocks) = nullptr;
};

const Codec* FindCodec(DType dtype);       // nullptr: no file holds it
const Codec* FindBlockCodec(DType dtype);  // nullptr: none of blocks.h

}  // namespace celer
