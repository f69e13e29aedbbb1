// The outliers of a token, which are multiplied separately in f32 (column.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/llm/matmul/cpu/pack.h"

namespace celer {

// Takes the largest magnitudes out of x, as long as each takes a twentieth off the row's rounding error:
// `rest` is x with zeros in their places. NaN reaches the result, here or there. `cols` is a multiple of 32.
void SplitOutliers(const float* x, int64_t cols, float* rest, TokenOutliers* out);

// The different columns among the outliers of some tokens, for one matrix.
class OutlierColumns {
 public:
  // `call` tells one product from another: with the same one, the same first token and the same format
  // nothing is looked for again.
  void Find(uint64_t call, int64_t first_token, std::span<const TokenOutliers> tokens,
            const PackedShape& shape, const PackGeometry& geometry, int64_t cols);
  std::span<const PackedColumn> columns() const { return columns_; }
  const uint16_t* slots(size_t token) const { return slots_.data() + token * kOutliers; }

 private:
  struct Key {
    uint64_t call = 0;
    int64_t first_token = 0, span = 0;
    size_t tokens = 0;
    PackedFormat format = PackedFormat::kNone;
    bool operator==(const Key&) const = default;
  } key_;
  std::vector<PackedColumn> columns_;
  std::vector<uint16_t> slots_;   // [tokens][kOutliers]
  std::vector<int32_t> slot_of_;  // by column; -1 between calls
};

}  // namespace celer
