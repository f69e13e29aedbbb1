// Whole blocks of keys and values, moved over all layers by one kernel: within a GPU's memory, or between it
// and pinned host memory, which the kernel reads and writes in place (zero-copy).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/llm/kv_block.h"

namespace celer::cuda {

// The keys of a layer are one part, its values the next, unless one row is both. Addresses, strides and block_bytes are multiples of
// 16.
struct KvBlockPlace {
  std::byte* base = nullptr;
  int64_t part_stride = 0, block_stride = 0;  // bytes
};

struct MoveKvBlocksArgs {
  KvBlockPlace from;  // without a base: zeros
  KvBlockPlace to;
  int parts = 0;  // of all layers
  int64_t block_bytes = 0;
};

// In no order: no block may be written twice, or both read and written in the same place.
cudaError_t LaunchMoveKvBlocks(const MoveKvBlocksArgs& args, std::span<const BlockCopy> pairs,
                               cudaStream_t stream);

}  // namespace celer::cuda
