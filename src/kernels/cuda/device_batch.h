// What one forward pass works on, in the memory of a GPU: the ragged batch of batch.h with device pointers.
// Positions and tables are read on the device at run time, so a captured graph never changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace celer::cuda {

struct DeviceBatch {
  const int32_t* tokens = nullptr;       // [count]
  const int32_t* positions = nullptr;    // [count]
  const int32_t* sequence = nullptr;     // [count], row of the block table
  const int32_t* block_table = nullptr;  // [sequences, max_blocks]
  int max_blocks = 0;
  int count = 0;
};

// One layer's keys and values: each [blocks, kv_heads, 16, padded_dim], padded_dim a multiple of 8 and zero
// beyond head_dim.
struct DeviceKv {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  DType dtype = DType::kF16;  // f16 or bf16
  int kv_heads = 0;
  int head_dim = 0;
  int padded_dim = 0;
};
constexpr int kKvBlock = 16;

}  // namespace celer::cuda
