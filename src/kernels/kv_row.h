// One head's row of keys or values, to the paged KV and back.
#pragma once

#include "kernels/batch.h"

namespace celer {

// `part` is kv.k or kv.v. Rounds to nearest; i8 with the row's largest magnitude at 127. A finite value
// beyond what the type holds (f16: 65504) becomes the largest finite one. Infinity and NaN are kept, so that
// who looks at the result finds out; in i8 they make the whole row NaN.
void StoreKvRow(const KvLayerView& kv, std::byte* part, int64_t block, int64_t head, int64_t slot,
                const float* row);
void LoadKvRow(const KvLayerView& kv, const std::byte* part, int64_t block, int64_t head, int64_t slot,
               float* row);

}  // namespace celer
