// One head's row of keys or values, to the paged KV and back.
#pragma once

#include "kernels/llm/batch.h"

namespace celer {

// `part` is kv.k or kv.v. Rounds to nearest; i8 with the row's largest magnitude at 127. Finite values
// saturate at the largest of the type (f16: 65504, fp8: 448). Infinity and NaN propagate, so that a reader of
// the result finds out; fp8 makes both NaN, i8 and q4_1 all values that share a scale.
//
// Keys with channel_keys: the rows of a block come in the order of their slots, by one thread for each head.
// A value beyond its channel's range in the block so far makes the scale larger and requantizes the earlier
// ones. What is stored does not depend on how many rows come at once.
//
// q4_1: rows are stored rotated (RotateKvRow), and rotated back when loaded.
void StoreKvRow(const KvLayerView& kv, std::byte* part, int64_t block, int64_t head, int64_t slot,
                const float* row);
void LoadKvRow(const KvLayerView& kv, const std::byte* part, int64_t block, int64_t head, int64_t slot,
               float* row);

// What is stored: as LoadKvRow, but a row of q4_1 stays rotated.
void LoadStoredKvRow(const KvLayerView& kv, const std::byte* part, int64_t block, int64_t head, int64_t slot,
                     float* row);

// Whether rows of that type are stored rotated.
inline bool RotatesKv(DType dtype) {
  return dtype == DType::kQ4_1;
}
// A row times an orthogonal Hadamard matrix (over the largest power of two that divides dim) that is its own
// inverse. An outlier channel is spread over all, so that few bits lose less; dot products of two rotated
// rows are those of the rows.
void RotateKvRow(float* row, int64_t dim);

}  // namespace celer
