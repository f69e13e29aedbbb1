// What one forward pass works on, and where its keys and values live.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/llm/kv_block.h"

namespace celer {

// The tokens of several sequences, one sequence after the other: prefill chunks and single decode steps
// alike.
struct RaggedBatch {
  std::span<const int32_t> tokens;       // [tokens]
  std::span<const int32_t> positions;    // [tokens], position of each within its own sequence
  std::span<const int32_t> seq_start;    // [seqs + 1], where each sequence's tokens begin
  std::span<const int32_t> block_table;  // [seqs, max_blocks], which KV block holds positions 16i .. 16i+15
  int64_t max_blocks = 0;
  std::span<const int32_t> logit_rows;  // indices into tokens whose logits are asked for
  // [seqs], or empty: how long the text is that each sequence began with. Rope scaling that depends on the
  // length of a sequence takes it to be that long from its first token on, however it is cut into batches.
  // Empty: up to its last token here.
  std::span<const int32_t> prompt_lengths = {};

  int64_t token_count() const { return static_cast<int64_t>(tokens.size()); }
  int64_t seqs() const { return static_cast<int64_t>(seq_start.size()) - 1; }
};

// How keys and values are stored.
struct KvFormat {
  DType dtype = DType::kF16;  // f32, f16, bf16, i8, fp8 or q4_1
  // i8 whose scales stand for 16 values each: of keys, those of one channel in the tokens of a block; of
  // values, neighbours in a row.
  bool channel_keys = false;

  constexpr KvFormat(DType type, bool by_channel = false) : dtype(type), channel_keys(by_channel) {}
};

// One layer's keys and values. K and V are each [blocks / run, kv_heads, run, block_size, head_dim]: the rows
// of a block that one head reads are contiguous, and with those of its neighbours in a run of blocks they are
// one long stream, which the hardware prefetches and which uses all sets of a cache. i8: behind each head's
// rows of a block stand their scales, one f32 per row, so a head's part of a block is block_size * (head_dim
// + 4) bytes; value = i8 * scale. With channel_keys the scales are bf16: of keys [head_dim] (per channel), of
// values [block_size, head_dim / 16].
struct KvLayerView {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  DType dtype = DType::kF16;  // f32, f16, bf16, i8, fp8 or q4_1
  int64_t blocks = 0;
  int64_t kv_heads = 0;
  int64_t block_size = kKvBlockTokens;
  int64_t head_dim = 0;
  int64_t run = 1;  // a power of two
  bool channel_keys = false;

  int64_t RowBytes() const { return head_dim / Info(dtype).block * Info(dtype).block_bytes; }
  int64_t ScaleGroups() const { return (head_dim + 15) / 16; }  // of a row of values, with channel_keys
  int64_t ScaleBytes() const {                                  // per row
    return channel_keys ? 2 * ScaleGroups() : dtype == DType::kI8 ? 4 : 0;
  }
  int64_t HeadBytes() const { return block_size * (RowBytes() + ScaleBytes()); }
  int64_t BlockBytes() const { return kv_heads * HeadBytes(); }
  int64_t Blocks() const { return (blocks + run - 1) / run * run; }  // that there is memory for: whole runs
  // Where a row begins, in bytes from k or v, and where its scale stands.
  int64_t RowOffset(int64_t block, int64_t head, int64_t slot) const {
    return (HeadPiece(block) + head * run) * HeadBytes() + slot * RowBytes();
  }
  // What head 0 reads of a block, counted in pieces of HeadBytes().
  int64_t HeadPiece(int64_t block) const { return block + (block & -run) * (kv_heads - 1); }
  int64_t ScaleOffset(int64_t block, int64_t head, int64_t slot) const {
    return RowOffset(block, head, block_size) + slot * ScaleBytes();
  }
};

}  // namespace celer
