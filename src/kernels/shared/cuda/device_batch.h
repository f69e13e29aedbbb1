// The inputs of one forward pass in the memory of a GPU: the ragged batch of batch.h with device pointers.
// Positions and tables are read on the device at run time, so a captured graph never changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/llm/kv_block.h"

namespace celer::cuda {

struct DeviceBatch {
  const int32_t* tokens = nullptr;       // [count]
  const int32_t* positions = nullptr;    // [count]
  const int32_t* sequence = nullptr;     // [count], row of the block table
  const int32_t* block_table = nullptr;  // [sequences, max_blocks]
  int max_blocks = 0;
  int count = 0;
};

constexpr int kKvBlock = kKvBlockTokens;

// One layer's keys and values: each [blocks, kv_heads, 16, padded_dim], zero beyond head_dim, rows a multiple
// of 16 bytes. i8: behind a head's 16 rows of a block stand their scales, one f32 each; value = i8 * scale.
struct DeviceKv {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  DType dtype = DType::kF16;  // f16, bf16, i8 or fp8 e4m3
  int kv_heads = 0;
  int head_dim = 0;
  int padded_dim = 0;

  static constexpr int ElementBytes(DType dtype) {
    return dtype == DType::kI8 || dtype == DType::kFp8E4M3 ? 1 : 2;
  }
  static constexpr int PaddedDim(DType dtype, int64_t head_dim) {
    const int unit = 16 / ElementBytes(dtype);
    return static_cast<int>((head_dim + unit - 1) / unit * unit);
  }
  constexpr int row_bytes() const { return padded_dim * ElementBytes(dtype); }
  // Of one head's part of a block.
  constexpr int head_bytes() const { return kKvBlockTokens * (row_bytes() + (dtype == DType::kI8 ? 4 : 0)); }
  constexpr int64_t block_bytes() const { return static_cast<int64_t>(kv_heads) * head_bytes(); }
  // Where a head's part of a block begins, in bytes from k or v.
  constexpr int64_t HeadOffset(int64_t block, int head) const {
    return block * block_bytes() + static_cast<int64_t>(head) * head_bytes();
  }
};

}  // namespace celer::cuda
