// Strided copies: transposes and other changes of layout.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "device/thread_pool.h"

namespace celer::graph {

// to[i · to_stride] = from[i · from_stride] for every index i below `dims`; strides are in elements, and may
// be negative or 0 in `from`. The tensors do not overlap.
void CopyStrided(ThreadPool& pool, DType dtype, std::span<const int64_t> dims, const std::byte* from,
                 std::span<const int64_t> from_stride, std::byte* to, std::span<const int64_t> to_stride);

}  // namespace celer::graph
