#include "kernels/llm/kv_row.h"

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
    std::vector<float> row(dim);
    for (size_t i = 0; i < row.size(); ++i) row[i] = (static_cast<float>(i) - 20.3f) * 1.2345e-3f;
    row[0] = 65519.99f, row[1] = 65504.0f, row[2] = 6.1e-5f, row[3] = -3.0e-8f, row[4] = 2049.0f;
    row[5] = -std::numeric_limits<float>::infinity();
    std::vector<std::byte> stored(2 * dim), plain(stored.size());
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
  EXPECT_EQ(through(DType::kFp8E4M3, {1e30f, -1e30f})[1], -448.0f);
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kI8, DType::kFp8E4M3, DType::kF32}) {
    EXPECT_TRUE(std::isnan(through(dtype, {1, nan})[1])) << Name(dtype);
    EXPECT_FALSE(std::isfinite(through(dtype, {1, kInf})[1])) << Name(dtype);
    EXPECT_FALSE(std::isfinite(through(dtype, {1, -kInf})[1])) << Name(dtype);
  }
}

// Integers cannot hold what is not finite; the scale does.
TEST(KvRow, WhatIsNotFiniteStaysSo) {
  for (const DType dtype :
       {DType::kI8, DType::kF16, DType::kBf16, DType::kFp8E4M3, DType::kQ4_1, DType::kF32})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
      for (const size_t at : {size_t{0}, size_t{5}, size_t{15}}) {
        KvLayerView kv{.dtype = dtype, .blocks = 1, .kv_heads = 1, .block_size = 1, .head_dim = 32};
        std::vector<std::byte> memory(kv.BlockBytes());
        std::vector<float> row(32, 0.5f), back(32);
        row[at] = bad;
        StoreKvRow(kv, memory.data(), 0, 0, 0, row.data());
        LoadKvRow(kv, memory.data(), 0, 0, 0, back.data());
        EXPECT_FALSE(std::isfinite(back[at])) << Name(dtype);
      }
}

// One block of keys or values with channel_keys, through the memory and back.
std::vector<float> ByChannel(const std::vector<float>& rows, int64_t dim, bool keys) {
  KvLayerView kv{.dtype = DType::kI8, .blocks = 1, .kv_heads = 1, .head_dim = dim, .channel_keys = true};
  std::vector<std::byte> k(kv.BlockBytes(), std::byte{0xff}), v(k);
  kv.k = k.data(), kv.v = v.data();
  std::byte* part = keys ? kv.k : kv.v;
  const auto count = static_cast<int64_t>(rows.size()) / dim;
  std::vector<float> back(rows.size());
  for (int64_t s = 0; s < count; ++s) StoreKvRow(kv, part, 0, 0, s, rows.data() + s * dim);
  for (int64_t s = 0; s < count; ++s) LoadKvRow(kv, part, 0, 0, s, back.data() + s * dim);
  return back;
}

// A channel a thousand times as large as the others costs them nothing: each has its own scale. A step is
// 1/127 of the channel's largest value, a little more because scales are rounded up; earlier rows of a
// channel that grew were rounded more than once.
TEST(KvRow, KeysHaveAScaleForEachChannel) {
  for (const int64_t dim : {7, 20, 64}) {
    std::vector<float> rows(16 * dim);
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = std::sin(static_cast<float>(i) * 1.7f) * (i % static_cast<size_t>(dim) == 3 ? 1000.0f : 1.0f);
    const auto back = ByChannel(rows, dim, true);
    double squares = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const double size = i % static_cast<size_t>(dim) == 3 ? 1000 : 1, miss = (back[i] - rows[i]) / size;
      EXPECT_LE(std::fabs(miss), 2.0 / 127) << dim << " " << i;
      squares += miss * miss;
    }
    EXPECT_LE(std::sqrt(squares / static_cast<double>(rows.size())), 0.5 / 127) << dim;
  }
}

TEST(KvRow, ValuesHaveAScaleForSixteen) {
  for (const int64_t dim : {7, 20, 64}) {
    std::vector<float> rows(16 * dim);
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = std::cos(static_cast<float>(i)) * (i % static_cast<size_t>(dim) < 16 ? 1.0f : 300.0f);
    const auto back = ByChannel(rows, dim, false);
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_NEAR(back[i], rows[i], (i % static_cast<size_t>(dim) < 16 ? 1.0 : 300.0) * 0.51 / 127)
          << dim << " " << i;
  }
}

TEST(KvRow, ByChannelFiniteStaysFiniteAndNanIsNotHidden) {
  constexpr float kMax = std::numeric_limits<float>::max(), kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  for (const bool keys : {true, false}) {
    for (const float size : {kMax, 1e-30f, 1e-42f, 0.0f}) {
      const auto back = ByChannel({0, size, -size, size / 2, 0, size, size, -size}, 4, keys);
      EXPECT_EQ(back[0], 0);
      // Below the smallest normal numbers, steps are coarse.
      EXPECT_NEAR(back[1], size, static_cast<double>(size) / 100 + 1e-38);
      EXPECT_NEAR(back[7], -size, static_cast<double>(size) / 100 + 1e-38);
    }
    for (const float bad : {kNan, kInf, -kInf}) {
      const auto back = ByChannel({1, 2, 3, 4, 1, bad, 3, 4, 1, 2, 3, 4}, 4, keys);
      EXPECT_TRUE(std::isnan(back[5]));
      EXPECT_EQ(std::isnan(back[6]), !keys);  // its neighbour, of another channel
      EXPECT_EQ(std::isnan(back[9]), keys);   // the same channel, later
    }
  }
}

TEST(KvRow, RotationIsItsOwnInverseAndKeepsProducts) {
  for (const int64_t dim : {1, 6, 20, 64, 96}) {
    std::vector<float> a(dim), b(a);
    double product = 0, rotated = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] = std::sin(static_cast<float>(i) + 1), b[i] = std::cos(static_cast<float>(3 * i));
      product += static_cast<double>(a[i]) * b[i];
    }
    auto c = a, d = b;
    RotateKvRow(c.data(), dim);
    RotateKvRow(d.data(), dim);
    for (size_t i = 0; i < a.size(); ++i) rotated += static_cast<double>(c[i]) * d[i];
    EXPECT_NEAR(rotated, product, 1e-5) << dim;
    RotateKvRow(c.data(), dim);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(c[i], a[i], 1e-6) << dim;
  }
}

// One large channel among 64 small ones: without rotation its block would lose all the others.
TEST(KvRow, FourBitsKeepSmallChannelsBesideALargeOne) {
  const int64_t dim = 64;
  std::vector<float> row(64), back(64);
  for (size_t i = 0; i < row.size(); ++i) row[i] = i == 5 ? 20.0f : std::sin(static_cast<float>(i));
  KvLayerView kv{.dtype = DType::kQ4_1, .blocks = 1, .kv_heads = 1, .block_size = 1, .head_dim = dim};
  std::vector<std::byte> memory(kv.BlockBytes());
  StoreKvRow(kv, memory.data(), 0, 0, 0, row.data());
  LoadKvRow(kv, memory.data(), 0, 0, 0, back.data());
  double squares = 0;
  for (size_t i = 0; i < row.size(); ++i) squares += std::pow(back[i] - row[i], 2);
  // Rotated values lie around 20 / 8 = 2.5; a step is about a thirtieth of twice that and more.
  EXPECT_LE(std::sqrt(squares / 64), 0.2);
  std::vector<std::byte> plain(memory.size());
  EncodeRow(DType::kQ4_1, row.data(), dim, plain.data());
  DecodeRow(DType::kQ4_1, plain.data(), dim, back.data());
  double otherwise = 0;
  for (size_t i = 0; i < row.size(); ++i) otherwise += std::pow(back[i] - row[i], 2);
  EXPECT_LE(squares, 0.7 * otherwise);
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
        std::vector<int> used(kv.Blocks() * kv.BlockBytes());
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
