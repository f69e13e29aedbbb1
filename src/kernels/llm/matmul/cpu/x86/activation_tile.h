// Activations for the x86 tile kernels: sixteen tokens to a unit, which is the height of an AMX tile. Values
// stand in the order of tiles, 64 bytes of each token in turn, so that going along the columns reads memory
// from front to back, which is what prefetching is good at. What belongs to a block stands side by side for
// all sixteen, as [block][token].
//
//   kBlocks  int8 q[cols / 64][16][64], float scale[blocks][16], float sum[blocks][16],
//            int32 isum[blocks][16]
//   kRow     int8 q[cols / 64][16][64], float scale[16], int32 isum[16], int32 high_sum[16],
//            int32 highs[16], XHigh high[16][cols / 4]
//   kSupers  int8 q[cols / 64][16][64], float scale[supers][16], int16 sum32[supers * 4][16][2],
//            int16 sum16[supers * 8][16][2]
//   kFloat   float[16][stride]
//   kBf16    bf16[cols / 32][16][32]
//
// Blocks are of 32 columns, supers of 256. isum is the sum of a block's (kRow: a row's) q, sum that times its
// scale. The last 64 bytes of a token are filled up with zeros.
//
// kRow: a value is scale * (q + 128 * high). high is zero but for a few outliers, and is kept in a sparse
// list of the steps of four columns that have one; high_sum is the sum of all of a token's. So one scale
// serves a whole row, accumulators stay integers to its end, and yet what is not an outlier keeps its
// precision.
//
// In an unnamed namespace: files built for several instruction sets include this, and each keeps its own
// copy.
#pragma once

#include <stdint.h>

#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::x86 {
namespace {

constexpr int kXTokens = 16;

constexpr int kXTileBytes = kXTokens * 64;

// Bytes of all tokens' values.
inline int64_t XValues(int64_t token_bytes) {
  return (token_bytes + 63) / 64 * kXTileBytes;
}
// From the start of a unit to column c of its first token; the next token's is 64 bytes further.
inline int64_t XAt(int64_t c) {
  return c / 64 * kXTileBytes + c % 64;
}

struct XBlocks {
  int8_t* q;
  float* scale;
  float* sum;
  int32_t* isum;
  int64_t bytes;
};
inline XBlocks XBlocksAt(uint8_t* unit, int64_t cols) {
  const int64_t blocks = cols / kBlockCols;
  XBlocks x;
  x.q = reinterpret_cast<int8_t*>(unit);
  x.scale = reinterpret_cast<float*>(unit + XValues(cols));
  x.sum = x.scale + blocks * kXTokens;
  x.isum = reinterpret_cast<int32_t*>(x.sum + blocks * kXTokens);
  x.bytes = XValues(cols) + blocks * kXTokens * 12;
  return x;
}

// Sums of this many products of bytes, one of them with 128 added, fit 32 bits.
constexpr int64_t kMaxRowCols = 65536;

struct XHigh {
  int32_t step;  // its first column / 4
  int8_t q[4];
};
struct XRow {
  int8_t* q;
  float* scale;
  int32_t* isum;
  int32_t* high_sum;
  int32_t* highs;  // entries of `high`
  XHigh* high;     // token t's from high + t * cols / 4 on
  int64_t bytes;
};
inline XRow XRowAt(uint8_t* unit, int64_t cols) {
  XRow x;
  x.q = reinterpret_cast<int8_t*>(unit);
  x.scale = reinterpret_cast<float*>(unit + XValues(cols));
  x.isum = reinterpret_cast<int32_t*>(x.scale + kXTokens);
  x.high_sum = x.isum + kXTokens;
  x.highs = x.high_sum + kXTokens;
  x.high = reinterpret_cast<XHigh*>(x.highs + kXTokens);
  x.bytes = XValues(cols) + kXTokens * (16 + cols / 4 * static_cast<int64_t>(sizeof(XHigh)));
  return x;
}

struct XSupers {
  int8_t* q;
  float* scale;
  int16_t* sum32;
  int16_t* sum16;
  int64_t bytes;
};
inline XSupers XSupersAt(uint8_t* unit, int64_t cols) {
  const int64_t supers = cols / kSuperCols;
  XSupers x;
  x.q = reinterpret_cast<int8_t*>(unit);
  x.scale = reinterpret_cast<float*>(unit + XValues(cols));
  x.sum32 = reinterpret_cast<int16_t*>(x.scale + supers * kXTokens);
  x.sum16 = x.sum32 + supers * 8 * kXTokens;
  x.bytes = XValues(cols) + supers * kXTokens * (4 + 48);
  return x;
}

// The sum over sub-block `sub` of 32 or 16 columns, counted from the row's start.
inline int32_t SubSum(const int16_t* sums, int64_t sub, int64_t token) {
  return sums[(sub / 2 * kXTokens + token) * 2 + sub % 2];
}

// An odd number of cache lines, so that the sixteen rows do not conflict in the same sets of the cache.
inline int64_t XFloatStride(int64_t cols) {
  return ((cols + 15) / 16 | 1) * 16;
}

// The kernels' own view: they only read.
inline XBlocks XBlocksOf(const uint8_t* unit, int64_t cols) {
  return XBlocksAt(const_cast<uint8_t*>(unit), cols);
}
inline XRow XRowOf(const uint8_t* unit, int64_t cols) {
  return XRowAt(const_cast<uint8_t*>(unit), cols);
}
inline XSupers XSupersOf(const uint8_t* unit, int64_t cols) {
  return XSupersAt(const_cast<uint8_t*>(unit), cols);
}

inline int64_t XTileBytes(XKind kind, int64_t cols) {
  switch (kind) {
    case XKind::kBlocks:
      return (XBlocksAt(nullptr, cols).bytes + 63) / 64 * 64;
    case XKind::kRow:
      return (XRowAt(nullptr, cols).bytes + 63) / 64 * 64;
    case XKind::kSupers:
      return (XSupersAt(nullptr, cols).bytes + 63) / 64 * 64;
    case XKind::kFloat:
      return kXTokens * 4 * XFloatStride(cols);
    case XKind::kBf16:
      return XValues(2 * cols);
    case XKind::kNibbles:
    case XKind::kNibblesMin:
      break;
  }
  return 0;
}

}  // namespace
}  // namespace celer::x86
