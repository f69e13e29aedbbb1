// Weights in the order a kernel reads them, and activations beside them. Plain declarations only, because
// files built for newer instruction sets include it.
//
// Rows are interleaved in groups of `rows`, and inside a group by steps of `step` columns, so that one vector
// register holds the same few columns of several rows: element (r, k) of a group stands at
// ((k / step) * rows + r) * step + k % step. Nothing is lost: integers and scales are those of the stored
// blocks. Rows that are missing in the last group are zeros.
//
// Blocks of 32 columns ("span" columns share their scales; 32 except in celer's own formats):
//   span header: scale[rows], min[rows] where there is one; then per block: values
// Super-blocks of 256 columns:
//   d f16[rows], dmin f16[rows] where there is one, scales int8[subs][rows], mins uint8[subs][rows] where
//   there is one; then 8 blocks of values
// Values of 32 columns:
//   byte    int8 as above                                            32 * rows bytes
//   nibble  two steps share a byte, the even one in the low half     16 * rows
//   six     four steps share three bytes: the first three in the upper six bits, the fourth in the lower two
//           of each, from the top down                               24 * rows
#pragma once

#include <stdint.h>

namespace celer {

enum class PackedFormat : uint8_t {
  kNone,
  kByte,       // signed, f16 scale: Q8_0, Q5_0
  kByteMin,    // signed, f16 scale and min: Q5_1
  kByteWide,   // signed, f32 scale: celer's int8
  kNibble,     // signed, f16 scale: Q4_0
  kNibbleMin,  // unsigned, f16 scale and min: Q4_1, celer's int4
  kSuperQ2,    // unsigned nibbles, 16 subs with min
  kSuperQ3,    // signed nibbles, 16 subs
  kSuperQ4,    // unsigned nibbles, 8 subs with min
  kSuperQ5,    // unsigned bytes, 8 subs with min
  kSuperQ6,    // signed sixes, 16 subs
  kF32,        // as they are, step 1
  kF16,        // step 1
  kBf16,       // step PackGeometry::bf16_step
};
constexpr int kPackedFormats = 14;

struct PackGeometry {
  int rows;       // interleaved
  int step;       // columns of a row that stay together, in integer formats
  int bf16_step;  // the same for bf16
};

constexpr int kBlockCols = 32;
constexpr int kSuperCols = 256;

// How a kernel wants its activations.
enum class XKind : uint8_t {
  kBlocks,  // int8, a scale to 32 columns
  kWide,    // int8, a scale to 64 columns, for weights with one scale to a row
  kSupers,  // int8, a scale to 256 columns
  kFloat,
  kBf16
};
constexpr int kXKinds = 5;

// A piece of a product: `groups` row groups times `tokens` tokens, raw sums to out[t * out_stride + r].
struct TileJob {
  const uint8_t* w;     // first row group
  int64_t group_bytes;  // from one row group to the next
  int groups;
  const uint8_t* x;  // first unit of activations
  int64_t x_bytes;   // from one unit to the next
  int tokens;
  int64_t cols;
  int64_t span;
  float* out;
  int64_t out_stride;
};
using TileFn = void (*)(const TileJob&);

// Two tokens side by side, for NEON: a register holds the same 8 columns of both. A unit of up to 8 tokens is
// interleaved block by block, so that a tile reads one stream of memory: one pair if there are at most two
// tokens, else four.
constexpr int kXPairTokens = 8;
constexpr int XPairs(int tokens) {
  return tokens <= 2 ? 1 : 4;
}
struct XPairBlock {
  float scale[4];  // of token 0, 1, 0, 1
  float sum[4];    // scale * sum(q): what a block's minimum is multiplied with
  int8_t q[4][2][8];
};
struct XPairSuper {
  float scale[4];        // of token 0, 1, 0, 1
  int16_t sum32[8][4];   // sum(q) over 32 columns, of token 0, 1, 0, 1
  int16_t sum16[16][4];  // over 16
  int8_t q[32][2][8];
};

}  // namespace celer
