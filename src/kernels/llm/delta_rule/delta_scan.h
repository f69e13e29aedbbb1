// The inner loop of the delta rule (delta_rule.h): one piece of S over the tokens of a prompt. For files with an ISA
// suffix, too, so that it includes nothing with functions.
#pragma once

#include <stdint.h>

namespace celer {

// Columns of S that lie together: a state is [value_heads, pieces of columns, key_dim, kDeltaColumns], columns that
// do not exist included.
inline constexpr int64_t kDeltaColumns = 32;
constexpr int64_t DeltaStateFloats(int64_t key_dim, int64_t value_heads, int64_t value_dim) {
  return value_heads * ((value_dim + kDeltaColumns - 1) / kDeltaColumns) * key_dim * kDeltaColumns;
}

// One piece of S over consecutive tokens of a sequence.
struct DeltaScan {
  float* state = nullptr;  // [key_dim, kDeltaColumns]
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  int64_t stride = 0;  // floats from one token's q, k and v to the next one's
  const float *decay = nullptr, *beta = nullptr;
  int64_t gate_stride = 0;
  int64_t tokens = 0, key_dim = 0;
  int64_t columns = 0;  // that exist, up to kDeltaColumns
  float* out = nullptr;
  int64_t out_stride = 0;
};

}  // namespace celer
