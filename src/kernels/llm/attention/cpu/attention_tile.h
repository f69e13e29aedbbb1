// The micro-kernel that an instruction set implements: some queries of one kv head against a split of the
// keys. Plain C types only: files with an ISA suffix include this.
#pragma once

#include <stdint.h>

namespace celer {

enum class KvKind : uint8_t { kF32, kF16, kBf16, kI8 };

// Keys are grouped by absolute position, whatever the batch, the chunking and the number of threads:
constexpr int64_t kSegmentKeys = 16;  // rows that lie together in one KV block
constexpr int64_t kSpanKeys = 64;     // weighted values are summed up over these before they join the total
constexpr int64_t kSoftmaxKeys = 64;  // one step of the running softmax
constexpr int64_t kSplitKeys = 512;   // one partial result; splits are combined in order
constexpr int64_t kMaxTileRows = 64;  // queries of a tile: tokens * group, or one token's group

// Rows of accumulators and of scratch are padded to whole vectors of every instruction set. Static: each file
// keeps its own copy.
static constexpr int64_t PaddedDim(int64_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}
// Enough for every implementation: per row a query, sums, scores and weights of a step, with rows filled up
// to whole vectors; and the decoded keys or values of a step.
static constexpr int64_t TileScratchFloats(int64_t rows, int64_t head_dim) {
  const int64_t lanes = (rows + 31) / 32 * 32, padded = PaddedDim(head_dim);
  return lanes * (padded * 2 + 8) + rows * 2 * kSoftmaxKeys + kSoftmaxKeys * (32 + 2 * padded);
}

struct AttentionTile {
  KvKind kind = KvKind::kF16;
  const uint8_t* k = nullptr;  // this kv head's rows of KV block 0
  const uint8_t* v = nullptr;
  int64_t block_bytes = 0;          // from one KV block to the next
  int64_t row_bytes = 0;            // from one key to the next within a block
  int64_t scale_offset = 0;         // i8: from the head's first row to its f32 scales, one per row
  int64_t block_size = 0;           // keys in a block, a multiple of kSegmentKeys
  const int32_t* blocks = nullptr;  // the sequence's block table

  const float* q = nullptr;  // [tokens, group, head_dim]
  int64_t token_stride = 0;  // floats from one token's first head to the next token's
  int64_t tokens = 0, group = 0, head_dim = 0;
  const int32_t* positions = nullptr;  // [tokens], ascending
  int64_t window = 0;                  // 0 = none
  bool chunked = false;                // as in AttentionArgs
  float scale = 1;
  float softcap = 0;              // as in AttentionArgs
  const float* slopes = nullptr;  // [group], ALiBi; may be none
  bool rounded_slopes = false;

  int64_t key_begin = 0, key_end = 0;  // keys of this split

  // What the same thread will most likely read after this split: [next_begin, next_end), nothing if empty.
  // Only for prefetching.
  const uint8_t *next_k = nullptr, *next_v = nullptr;
  const int32_t* next_blocks = nullptr;
  int64_t next_begin = 0, next_end = 0;

  float* scratch = nullptr;  // TileScratchFloats(), 64-byte aligned
  bool same_queries =
      false;  // as the tile before had that used this scratch: what was made of them is still there
  // The partial result of each row = (token, head of the group): an unnormalized softmax relative to max.
  float* max = nullptr;  // [rows], -infinity for a row that sees no key here
  float* sum = nullptr;  // [rows]
  float* acc = nullptr;  // [rows, PaddedDim]
};

// Which entry of a block table holds a key, without a division where blocks have the usual size.
static inline int64_t BlockOf(const AttentionTile& t, int64_t key) {
  return t.block_size == kSegmentKeys ? key / kSegmentKeys : key / t.block_size;
}
// From a head's first row to the row of a key.
static inline int64_t RowOf(const AttentionTile& t, const int32_t* blocks, int64_t key) {
  const int64_t block = BlockOf(t, key);
  return blocks[block] * t.block_bytes + (key - block * t.block_size) * t.row_bytes;
}

// The first key that a token sees; its own is the last.
static inline int64_t FirstKey(const AttentionTile& t, int64_t token) {
  const int64_t position = t.positions[token];
  if (t.window == 0 || position < t.window) return 0;
  return t.chunked ? position / t.window * t.window : position - t.window + 1;
}

namespace {  // each file keeps its own copy

struct KeyRange {
  int64_t begin, end;  // relative to the start of some group of keys
  bool empty() const { return begin >= end; }
  bool operator==(const KeyRange& o) const { return begin == o.begin && end == o.end; }
};

}  // namespace

static inline float RoundedToBf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
// What ALiBi adds to the score of a key: nothing to that of the query's own.
static inline float AlibiBias(float slope, int64_t key, int64_t position, bool rounded, float scale) {
  if (!rounded) return slope * (float)(key - position);
  slope = RoundedToBf16(slope);
  const float at_key = RoundedToBf16(slope * RoundedToBf16((float)key));
  return (at_key - RoundedToBf16(slope * RoundedToBf16((float)position))) * scale;
}
// To the scores of a row for the keys of a step of the softmax.
static inline void AlibiBiases(const AttentionTile& t, int64_t row, int64_t start, float* biases) {
  const float slope = t.slopes[row % t.group];
  const int64_t position = t.positions[row / t.group];
  for (int64_t i = 0; i < kSoftmaxKeys; ++i)
    biases[i] = AlibiBias(slope, start + i, position, t.rounded_slopes, t.scale);
}

// The keys of [start, start + n) that a token sees.
static inline KeyRange VisibleKeys(const AttentionTile& t, int64_t token, int64_t start, int64_t n) {
  const int64_t first = FirstKey(t, token), end = t.positions[token] + 1 - start;
  return {first > start ? first - start : 0, end < n ? end : n};
}

// What keeps f32 sums finite: |query| <= kQueryRoom times keys of any size (4096 elements), weights of at
// most kWeightRoom times values of any size (a million keys).
constexpr float kQueryRoom = 0x1p-12f, kWeightRoom = 0x1p-20f;

namespace {

// Powers of two: magnitude * below < 1, above * below = 1. At the very end of the range magnitude * below
// < 4.
struct PowerOfTwo {
  float above, below;
  explicit PowerOfTwo(float magnitude) {
    uint32_t bits;
    __builtin_memcpy(&bits, &magnitude, sizeof bits);
    uint32_t exponent = bits >> 23 & 0xff;
    if (exponent > 252) exponent = 252;
    bits = (exponent + 1) << 23;
    __builtin_memcpy(&above, &bits, sizeof above);
    bits = (253 - exponent) << 23;
    __builtin_memcpy(&below, &bits, sizeof below);
  }
};

}  // namespace

// Where to find the rows of a later key of the same split, or of the split that follows; null if there is
// none.
struct RowsAhead {
  const uint8_t *k = nullptr, *v = nullptr;
};
static inline RowsAhead LookAhead(const AttentionTile& t, int64_t key) {
  if (key < t.key_end && key <= t.positions[t.tokens - 1]) {
    const int64_t at = RowOf(t, t.blocks, key);
    return {t.k + at, t.v + at};
  }
  // The split ends with the step of the softmax that holds its last key.
  const int64_t last = t.key_end - 1 < t.positions[t.tokens - 1] ? t.key_end - 1 : t.positions[t.tokens - 1];
  const int64_t later = t.next_begin + key - (last / kSoftmaxKeys + 1) * kSoftmaxKeys;
  if (later < t.next_begin || later >= t.next_end) return {};
  const int64_t at = RowOf(t, t.next_blocks, later);
  return {t.next_k + at, t.next_v + at};
}

using AttentionTileFn = void (*)(const AttentionTile&);

namespace portable {
void AttendTile(const AttentionTile& tile);
}
namespace arm {
void AttendTileNeon(const AttentionTile& tile);
void AttendTileFhm(const AttentionTile& tile);
}  // namespace arm
namespace x86 {
void AttendTileAvx2(const AttentionTile& tile);
void AttendTileAvx512(const AttentionTile& tile);
}  // namespace x86

}  // namespace celer
