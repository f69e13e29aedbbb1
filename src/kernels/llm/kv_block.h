// The one size of a block of keys and values, for engine, models and kernels of every device.
#pragma once

#include <cstdint>

namespace celer {

inline constexpr int kKvBlockTokens = 16;

constexpr int64_t KvBlocksFor(int64_t tokens) {
  return (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
}

// From where to where one block is copied.
struct BlockCopy {
  int32_t from = 0, to = 0;
};

}  // namespace celer
