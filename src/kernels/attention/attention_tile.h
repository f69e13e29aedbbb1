// The piece of work that an instruction set implements: some queries of one kv head against a piece of the
// keys. Plain C types only: files with an ISA suffix include this.
#pragma once

#include <stdint.h>

namespace celer {

enum class KvKind : uint8_t { kF32, kF16, kBf16, kI8 };

// Keys are grouped by absolute position, whatever the batch, the chunking and the number of threads:
constexpr int64_t kSegmentKeys = 16;  // rows that lie together in one KV block
constexpr int64_t kSpanKeys = 64;     // weighted values are summed up over these before they join the total
constexpr int64_t kSoftmaxKeys = 64;  // one step of the running softmax
constexpr int64_t kPieceKeys = 512;   // one partial result; pieces are combined in order
constexpr int64_t kMaxTileRows = 64;  // queries of a tile: tokens * group, or one token's group

// Rows of accumulators and of scratch are padded to whole vectors of every instruction set. Static: each file
// keeps its own copy.
static constexpr int64_t PaddedDim(int64_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}
static constexpr int64_t TileScratchFloats(int64_t rows, int64_t head_dim) {
  return rows * (PaddedDim(head_dim) + 2 * kSoftmaxKeys + 1) + 2 * kSoftmaxKeys +
         kSpanKeys * PaddedDim(head_dim);
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
  float scale = 1;

  int64_t key_begin = 0, key_end = 0;  // keys of this piece

  float* scratch = nullptr;  // TileScratchFloats(), 64-byte aligned
  // The partial result of each row = (token, head of the group): the softmax is relative to max, not divided.
  float* max = nullptr;  // [rows], -infinity for a row that sees no key here
  float* sum = nullptr;  // [rows]
  float* acc = nullptr;  // [rows, PaddedDim]
};

using AttentionTileFn = void (*)(const AttentionTile&);

namespace portable {
void AttendTile(const AttentionTile& tile);
}
namespace arm {
void AttendTileFp16(const AttentionTile& tile);
}
namespace x86 {
void AttendTileAvx2(const AttentionTile& tile);
void AttendTileAvx512(const AttentionTile& tile);
}  // namespace x86

}  // namespace celer
