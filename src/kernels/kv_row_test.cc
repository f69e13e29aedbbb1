#include "kernels/kv_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
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
    row[0] = 65519.99f, row[1] = 65504.0f, row[2] = 6.1e-5f, row[3] = -3.0e-8f, row[4] = 2049.0f;
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

// What a type cannot hold becomes the largest that it can; infinity and NaN are not hidden.
TEST(KvRow, FiniteStaysFinite) {
  constexpr float kMax = std::numeric_limits<float>::max(), kInf = std::numeric_limits<float>::infinity();
  const float nan = std::bit_cast<float>(0xffffffffu);
  const auto through = [](DType dtype, std::vector<float> row) {
    row.resize(16, 1.0f);
    std::vector<std::byte> memory(256);
    const KvLayerView kv{
        .k = memory.data(), .dtype = dtype, .blocks = 1, .kv_heads = 1, .block_size = 1, .head_dim = 16};
    StoreKvRow(kv, kv.k, 0, 0, 0, row.data());
    LoadKvRow(kv, kv.k, 0, 0, 0, row.data());
    return row;
  };
  for (const float huge : {65520.0f, 1e5f, 1e30f, kMax}) {
    const auto half = through(DType::kF16, {huge, -huge});
    EXPECT_EQ(half[0], 65504.0f);
    EXPECT_EQ(half[1], -65504.0f);
    for (const DType dtype : {DType::kBf16, DType::kI8, DType::kF32}) {
      const auto row = through(dtype, {huge, -huge});
      EXPECT_NEAR(row[0] / huge, 1, 0.004) << Name(dtype);
      EXPECT_NEAR(row[1] / huge, -1, 0.004) << Name(dtype);
    }
  }
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kI8, DType::kF32}) {
    EXPECT_TRUE(std::isnan(through(dtype, {1, nan})[1])) << Name(dtype);
    EXPECT_FALSE(std::isfinite(through(dtype, {1, kInf})[1])) << Name(dtype);
    EXPECT_FALSE(std::isfinite(through(dtype, {1, -kInf})[1])) << Name(dtype);
  }
}

// Integers cannot hold what is not finite; the scale does.
TEST(KvRow, WhatIsNotFiniteStaysSo) {
  for (const DType dtype : {DType::kI8, DType::kF16, DType::kBf16, DType::kF32})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
      for (const size_t at : {size_t{0}, size_t{5}, size_t{15}}) {
        KvLayerView kv{.dtype = dtype, .blocks = 1, .kv_heads = 1, .block_size = 1, .head_dim = 16};
        std::vector<std::byte> memory(static_cast<size_t>(kv.BlockBytes()));
        std::vector<float> row(16, 0.5f), back(16);
        row[at] = bad;
        StoreKvRow(kv, memory.data(), 0, 0, 0, row.data());
        LoadKvRow(kv, memory.data(), 0, 0, 0, back.data());
        EXPECT_FALSE(std::isfinite(back[at])) << Name(dtype);
      }
}

// Every row and every scale has its own bytes, inside the memory that there is.
TEST(KvRow, RowsDoNotOverlap) {
  for (const DType dtype : {DType::kF16, DType::kI8})
    for (const int64_t run : {1, 4, 16})
      for (const int64_t blocks : {1, 5, 16, 37}) {
        const KvLayerView kv{
            .dtype = dtype, .blocks = blocks, .kv_heads = 3, .block_size = 16, .head_dim = 6, .run = run};
        ASSERT_GE(kv.Blocks(), blocks);
        ASSERT_LT(kv.Blocks(), blocks + run);
        std::vector<int> used(static_cast<size_t>(kv.Blocks() * kv.BlockBytes()));
        const auto use = [&](int64_t offset, int64_t bytes) {
          for (int64_t i = offset; i < offset + bytes; ++i) ++used.at(static_cast<size_t>(i));
        };
        for (int64_t b = 0; b < blocks; ++b)
          for (int64_t h = 0; h < kv.kv_heads; ++h)
            for (int64_t slot = 0; slot < kv.block_size; ++slot) {
              use(kv.RowOffset(b, h, slot), kv.RowBytes());
              use(kv.ScaleOffset(b, h, slot), kv.ScaleBytes());
            }
        EXPECT_EQ(*std::max_element(used.begin(), used.end()), 1) << run << " " << blocks;
        // A run's rows of one head are one piece.
        const int64_t step = run > 1 ? kv.HeadBytes() : kv.BlockBytes();
        EXPECT_EQ(kv.RowOffset(1, 2, 0) - kv.RowOffset(0, 2, 0), step) << run;
      }
}

}  // namespace
}  // namespace celer
