// Packed weights, interleaved in the order in which a kernel reads them, and the activations beside them.
// Plain declarations only, because files built for newer instruction sets include it.
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

// A version: packed weights on disk with another number are not used.
constexpr int kPackedLayout = 6;

enum class PackedFormat : uint8_t {
  kNone,
  kByte,       // signed, f16 scale: Q8_0, Q5_0
  kByteMin,    // signed, f16 scale and min: Q5_1
  kByteWide,   // signed, f32 scale: celer's int8 in groups
  kByteRow,    // the same with one scale to a row
  kNibble,     // signed, or see Halves; f16 scale: Q4_0
  kNibbleMin,  // unsigned, f16 scale and min: Q4_1, celer's int4
  kLevels,     // nibbles that name levels (formats/fp4/mxfp4.h), f32 scale: MXFP4
  kLevelsIq4,  // the same with those of formats/iq/iq4_nl.h: IQ4_NL, IQ4_XS
  kSuperQ2,    // unsigned nibbles, 16 subs with min
  kSuperQ3,    // signed nibbles, 16 subs
  kSuperQ4,    // unsigned nibbles, or see Halves; 8 subs with min
  kSuperQ5,    // unsigned bytes, 8 subs with min
  kSuperQ6,    // signed sixes, 16 subs
  kF32,        // as they are, step 1
  kF16,        // step 1
  kBf16,       // step PackGeometry::bf16_step
};
constexpr int kPackedFormats = 17;

// How the halves of a byte hold kNibble's and kSuperQ4's values.
enum class Halves : uint8_t {
  kPlain,   // kNibble signed, kSuperQ4 unsigned
  kExcess,  // kNibble: + 8
  kMixed,   // the low one unsigned (kNibble: + 8), the high one signed (kSuperQ4: - 8)
};

struct PackGeometry {
  int rows;       // interleaved
  int step;       // columns of a row that stay together, in integer formats
  int bf16_step;  // the same for bf16
  Halves halves = Halves::kPlain;
  int min_step = 1;  // sub-blocks of a row whose minima stay together
  // Bytes between row groups. Groups are often a multiple of 1 kB and streams 2^n of them apart: without a
  // gap all streams of a token then use the same sets of the L1 cache at the same time. Super-blocks have
  // none: they are slower with it.
  int gap = 0;
};

constexpr int kBlockCols = 32;
constexpr int kSuperCols = 256;

// The layout of activations that a kernel wants: what x, and X in a name, stands for in this folder.
enum class XKind : uint8_t {
  kBlocks,  // int8, a scale to 32 columns
  kRow,     // int8, a scale to a row, and the few values that it cannot hold apart
  kSupers,  // int8, a scale to 256 columns
  kFloat,
  kBf16,
  kNibbles,     // NEON: for weights whose nibbles are multiplied where they stand, see XPairBlock
  kNibblesMin,  // the same for formats with a minimum: Q4_1, or for dot products Q4_K
};
constexpr int kXKinds = 7;

// The epilogue of a job: where its results go in the end, with bias and residual added: [tokens, stride],
// from the job's first token and row on.
struct TileTarget {
  float* out = nullptr;
  const float* residual = nullptr;  // laid out as out
  const float* bias = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;  // that exist: the last group may have fewer
};

// A job of a product: `groups` row groups times `tokens` tokens, raw sums to out[t * out_stride + r].
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
  // Weights of a later job, to be fetched into the L2 cache by kernels that find the time.
  const uint8_t* ahead = nullptr;
  int64_t ahead_bytes = 0;
  // With one token: this many jobs one after the other, each one row group (round_bytes) further along in
  // every stream. Sums of round i of group g go to out[(g * rounds + i) * rows of a group].
  int rounds = 1;
  int64_t round_bytes = 0;
  TileTarget to = {};  // with one, `out` is room for sums on the way
};
using TileFn = void (*)(const TileJob&);

// Activations for NEON. A unit of up to 8 tokens is interleaved block by block, so that a tile reads one
// stream of memory.
constexpr int kXUnitTokens = 8;

// For matrix instructions two tokens stand side by side: a register holds the same 8 columns of both. A unit
// has one such pair if there are at most two tokens, else four.
constexpr int XPairs(int tokens) {
  return tokens <= 2 ? 1 : 4;
}
// A conversion from int to float without an instruction for it: scales of 32 columns are powers of two, and
// what is stored instead is `start`, 1.5 * 2^23 * scale. The integer accumulators of a block begin with its
// bits: adding n to them adds n * scale to the number they are as a float, so that subtracting `start` again
// yields the scaled sum without a conversion or a multiplication.
//
// For nibbles (kNibbles, kNibblesMin) a byte of the weights is 16 * high + low, both unsigned. The byte
// itself is multiplied with the high step's activations h, and 16 * low with l, which is the low step's
// activations less h / 16, in units of the scale and rounded once: 16 * (high * h + low * (l + h / 16)) in
// all. A token that is alone in its unit has columns 4 to 7 of each step negated, and start is {start, -zero,
// start, -zero} (-start for kNibblesMin): the sums of columns 0 to 3 and of 4 to 7, as floats, then add up to
// the scaled sum at once.
struct XPairBlock {
  float start[4];  // of token 0, 1, 0, 1
  union {
    float sum[4];  // scale * sum(q), sixteen times the sum for kNibblesMin: what a minimum is multiplied with
    float zero[4];  // kNibbles: what to subtract instead of `start`, because the weights are 8 too large
  };
  int8_t q[4][2][8];  // if there is one token, it is there twice
};
struct XPairSuper {
  float scale[4];        // of token 0, 1, 0, 1
  int16_t sum32[8][4];   // sum(q) over 32 columns, of token 0, 1, 0, 1
  int16_t sum16[16][4];  // over 16
  int8_t q[32][2][8];
};

// For dot products each token stands alone, and a unit has as many as there are.
constexpr int XTokens(int tokens) {
  return tokens < kXUnitTokens ? tokens : kXUnitTokens;
}
// kNibbles is as above with steps of 4 columns and weights that are 8 too large in the low half of a byte
// only. There is no 16 * low in eight bits with a sign: with several tokens it is 16 * (low - 8), and with
// one in the unit low itself, whose sum is multiplied with 16 in the end; so `zero` is another one then.
struct XTokenBlock {
  float start[4];  // four times the same, as above
  union {
    float sum[4];  // scale * sum(q), four times
    float zero[4];
  };
  int8_t q[32];
};
struct XTokenSuper {
  int8_t q[256];
  // sum(q) over 32 and over 16 columns as low + 64 * high, so that minima meet them in dot products too
  int8_t low32[8], high32[8], low16[16], high16[16];
  float scale, unused[3];  // five cache lines
};
// kNibblesMin, for Halves::kMixed: columns as for kNibbles. The sums of sub-blocks begin with what makes up
// for the halves of bytes that are 8 too small, the low ones too unless the token is alone in its unit.
struct XTokenNibbleSuper : XTokenSuper {
  int32_t start[8][4];  // four times the same
};
static_assert(sizeof(XTokenNibbleSuper) == 448);

}  // namespace celer
