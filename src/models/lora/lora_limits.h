#pragma once

#include <cstdint>

namespace celer {

// Beyond, the matrices of an adapter would be as large as most models' own.
inline constexpr int64_t kMostLoraRank = 4096;

}  // namespace celer
