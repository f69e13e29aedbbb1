#include "kernels/kv_row.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "formats/decode.h"

namespace celer {
namespace {

// Whatever instruction converts a row, its bits are those of the plain conversion.
TEST(KvRow, HalvesAreThoseOfThePlainConversion) {
  for (const int64_t dim : {6, 8, 64, 72}) {
    std::vector<float> row(static_cast<size_t>(dim));
    for (size_t i = 0; i < row.size(); ++i) row[i] = (static_cast<float>(i) - 20.3f) * 1.2345e-3f;
    row[0] = 65519.99f, row[1] = 65520.0f, row[2] = 6.1e-5f, row[3] = -3.0e-8f, row[4] = 2049.0f;
    row[5] = -std::numeric_limits<float>::infinity();
    std::vector<std::byte> stored(static_cast<size_t>(2 * dim)), plain(stored.size());
    KvLayerView kv;
    kv.dtype = DType::kF16;
    kv.head_dim = dim;
    kv.kv_heads = 1;
    kv.block_size = 1;
    kv.k = stored.data();
    StoreKvRow(kv, kv.k, 0, 0, 0, row.data());
    EncodeRow(DType::kF16, row.data(), dim, plain.data());
    EXPECT_EQ(stored, plain) << dim;
  }
}

}  // namespace
}  // namespace celer
