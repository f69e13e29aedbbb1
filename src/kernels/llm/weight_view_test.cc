// Slices of matrices, as tensor parallelism takes them: rows of q, k, v, gate and up, columns of o and down.
#include "kernels/llm/weight_view.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "formats/test_rows.h"
#include "kernels/llm/matmul/matmul.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

ThreadPool& Pool() {
  static ThreadPool pool({.threads = 3});
  return pool;
}

struct Matrix {
  std::vector<std::byte> data, packed;
  std::vector<float> scales;  // or Int4Group, of the same size
  WeightView view;
};

Matrix Make(const WeightFormatSpec& format, int64_t rows, int64_t cols) {
  Matrix m;
  const int64_t row_bytes = format.RowBytes(cols), scale_bytes = format.ScaleBytes(cols);
  m.data.resize(rows * row_bytes);
  m.scales.resize(rows * scale_bytes / 4);
  const auto values = RandomFloats(rows * cols, 3);
  const bool read_only = format.stored() && !CanEncode(format.dtype);
  for (int64_t r = 0; r < rows; ++r)
    if (read_only)
      std::ranges::copy(RandomWeightRow(format.dtype, cols, static_cast<uint32_t>(r)),
                        m.data.data() + r * row_bytes);
    else
      format.Encode(values.data() + r * cols, cols, m.data.data() + r * row_bytes,
                    m.scales.data() + r * scale_bytes / 4);
  m.view = {.kind = format.kind,
            .dtype = format.dtype,
            .rows = rows,
            .cols = cols,
            .data = m.data.data(),
            .row_bytes = row_bytes,
            .scales = m.scales.empty() ? nullptr : m.scales.data(),
            .group = format.stored()    ? 0
                     : format.group > 0 ? format.group
                                        : cols,
            .name = "w"};
  return m;
}

// Packed for the variant, if it packs this; `alone`: without what it was packed from.
void PackFor(const MatmulKernels& kernels, bool alone, Matrix* m) {
  const int64_t bytes = kernels.packed_bytes ? kernels.packed_bytes(m->view) : 0;
  if (bytes == 0) return;
  m->packed.resize(bytes);
  kernels.pack(m->view, Pool(), m->packed.data());
  m->view = PackedView(m->view, kernels, m->packed.data());
  if (!alone) return;
  m->view.data = nullptr;
  m->view.scales = nullptr;
}

std::vector<float> Product(const MatmulKernels& kernels, const WeightView& w, const float* x,
                           int64_t tokens) {
  std::vector<float> out(tokens * w.rows);
  const MatmulOutput to{.w = w, .out = out.data(), .out_stride = w.rows};
  kernels.run({.x = x, .tokens = tokens, .outputs = {&to, 1}, .pool = &Pool()});
  return out;
}

// Columns [begin, begin + count) of x [tokens, cols].
std::vector<float> Columns(const std::vector<float>& x, int64_t cols, int64_t begin, int64_t count) {
  std::vector<float> out;
  for (size_t t = 0; t < x.size() / static_cast<size_t>(cols); ++t) {
    const float* row = x.data() + static_cast<int64_t>(t) * cols + begin;
    out.insert(out.end(), row, row + count);
  }
  return out;
}

struct Case {
  WeightFormatSpec format;
  int64_t cols, cut;
  bool packs_cut = true;  // there is a packed form, which can be cut there, too
};
std::vector<Case> Cases() {
  std::vector<Case> out;
  for (const DType dtype : AllBlockTypes()) {
    const int64_t step = Info(dtype).block;
    const bool packs = FindCodec(dtype)->unpack || FindCodec(dtype)->group >= 32;
    out.push_back({WeightFormatSpec::Stored(dtype), 3 * step, step, packs});
    if (step == 32) out.push_back({WeightFormatSpec::Stored(dtype), 1120, 736});
  }
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    out.push_back({WeightFormatSpec::Stored(dtype), 577, 144});
    out.push_back({WeightFormatSpec::Stored(dtype), 577, 35, false});
  }
  for (const int64_t group : {32, 64, 128})
    for (const WeightKind kind : {WeightKind::kInt8, WeightKind::kInt4, WeightKind::kFp8})
      out.push_back({{.kind = kind, .group = group}, 5 * group, 3 * group, kind != WeightKind::kFp8});
  out.push_back({{.kind = WeightKind::kFp8}, 101, 37, false});
  out.push_back({{.kind = WeightKind::kInt8}, 256, 96, false});
  out.push_back({{.kind = WeightKind::kInt8}, 101, 37, false});
  return out;
}

constexpr int64_t kRows = 107;

TEST(WeightSlice, ColumnProductsAddUpToTheWhole) {
  for (const Case& c : Cases())
    for (const MatmulVariant& variant : MatmulVariants()) {
      if (!variant.RunsHere()) continue;
      SCOPED_TRACE(std::string(variant.name) + " " + c.format.Name() + " " + std::to_string(c.cols));
      Matrix whole = Make(c.format, kRows, c.cols);
      PackFor(*variant.run, false, &whole);
      const auto left = whole.view.SliceColumns(0, c.cut),
                 right = whole.view.SliceColumns(c.cut, c.cols - c.cut);
      ASSERT_TRUE(left) << left.error().message();
      ASSERT_TRUE(right) << right.error().message();
      EXPECT_EQ(left->format(), c.format);
      if (!whole.packed.empty()) {
        EXPECT_EQ(left->packed != nullptr, c.packs_cut);
        EXPECT_EQ(right->packed != nullptr, c.packs_cut);
      }
      for (const int64_t tokens : {1, 3, 19}) {
        // One magnitude: eight bits hold it exactly, whatever else shares its scale.
        std::vector<float> x = RandomFloats(tokens * c.cols, 5);
        for (float& v : x) v = v < 0 ? -1.0f : 1.0f;
        const auto all = Product(*variant.run, whole.view, x.data(), tokens),
                   a = Product(*variant.run, *left, Columns(x, c.cols, 0, c.cut).data(), tokens),
                   b = Product(*variant.run, *right, Columns(x, c.cols, c.cut, c.cols - c.cut).data(),
                               tokens);
        for (size_t i = 0; i < all.size(); ++i)
          ASSERT_NEAR(all[i], a[i] + b[i], testing::SumTolerance(c.cols, static_cast<double>(c.cols))) << i;
      }
    }
}

// The packed form of a slice is a slice of the packed form: the same product, bit for bit.
TEST(WeightSlice, PackedColumnsAreWhatTheirOwnPackingGives) {
  for (const Case& c : Cases())
    for (const MatmulVariant& variant : MatmulVariants()) {
      if (!variant.RunsHere() || !variant.run->packed_bytes || !c.packs_cut) continue;
      SCOPED_TRACE(std::string(variant.name) + " " + c.format.Name() + " " + std::to_string(c.cols));
      Matrix whole = Make(c.format, kRows, c.cols);
      const WeightView stored = whole.view;
      PackFor(*variant.run, true, &whole);
      ASSERT_FALSE(whole.packed.empty());
      for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, c.cut}, {c.cut, c.cols - c.cut}}) {
        const auto cut = whole.view.SliceColumns(begin, count);
        ASSERT_TRUE(cut) << cut.error().message();
        Matrix own;
        own.view = *stored.SliceColumns(begin, count);
        PackFor(*variant.run, true, &own);
        for (const int64_t tokens : {1, 3, 19}) {
          const auto x = RandomFloats(tokens * count, 5);
          EXPECT_EQ(Product(*variant.run, *cut, x.data(), tokens),
                    Product(*variant.run, own.view, x.data(), tokens));
        }
        if (c.format.stored()) continue;
        std::vector<float> expected(count), row(expected.size());
        for (int64_t r = 0; r < kRows; ++r) {
          DecodeWeightRow(*stored.SliceColumns(begin, count), r, expected.data());
          DecodeWeightRow(*cut, r, row.data());
          ASSERT_EQ(expected, row);
        }
      }
    }
}

TEST(WeightSlice, RowsFollowEachOtherExactly) {
  for (const Case& c : Cases())
    for (const MatmulVariant& variant : MatmulVariants()) {
      if (!variant.RunsHere()) continue;
      SCOPED_TRACE(std::string(variant.name) + " " + c.format.Name() + " " + std::to_string(c.cols));
      Matrix whole = Make(c.format, kRows, c.cols);
      PackFor(*variant.run, true, &whole);
      constexpr int64_t kCut = 48;
      const auto top = whole.view.SliceRows(0, kCut), bottom = whole.view.SliceRows(kCut, kRows - kCut);
      ASSERT_TRUE(top) << top.error().message();
      ASSERT_TRUE(bottom) << bottom.error().message();
      for (const int64_t tokens : {1, 3, 19}) {
        const auto x = RandomFloats(tokens * c.cols, 5);
        const auto all = Product(*variant.run, whole.view, x.data(), tokens),
                   a = Product(*variant.run, *top, x.data(), tokens),
                   b = Product(*variant.run, *bottom, x.data(), tokens);
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t r = 0; r < kRows; ++r)
            ASSERT_EQ(all[t * kRows + r], r < kCut ? a[t * kCut + r] : b[t * (kRows - kCut) + r - kCut])
                << "token " << t << " row " << r;
      }
    }
}

TEST(WeightSlice, WhatCannotBeCutNamesBothValues) {
  const Matrix m = Make({.kind = WeightKind::kInt4, .group = 32}, 24, 128);
  const auto cut = m.view.SliceColumns(0, 48);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().message(),
            "tensor 'w': columns 0 to 48 of 24 x 128 cannot be cut out of int4-g32, which can be cut at "
            "multiples of 32");
  EXPECT_FALSE(Make(WeightFormatSpec::Stored(DType::kQ6_K), 8, 512).view.SliceColumns(128, 128));

  for (const MatmulVariant& variant : MatmulVariants()) {
    if (!variant.RunsHere() || !variant.run->packed_bytes) continue;
    Matrix packed = Make({.kind = WeightKind::kInt8}, 24, 128);  // a row's scale is not in each part of it
    PackFor(*variant.run, true, &packed);
    const auto columns = packed.view.SliceColumns(0, 64), rows = packed.view.SliceRows(3, 5);
    ASSERT_FALSE(columns);
    EXPECT_EQ(columns.error().message(),
              "tensor 'w': columns 0 to 64 of 24 x 128 cannot be cut out of int8 packed for " +
                  std::string(variant.name) + ", which can be cut at multiples of 128");
    ASSERT_FALSE(rows);
    EXPECT_NE(rows.error().message().find("rows 3 to 8"), std::string::npos) << rows.error().message();
  }
}

TEST(WeightView, BytesAndNames) {
  const Matrix m = Make({.kind = WeightKind::kInt4, .group = 32}, 10, 64);
  EXPECT_EQ(m.view.bytes(), 10 * (32 + 2 * 4));
  EXPECT_EQ(m.view.FormatName(), "int4-g32");
  EXPECT_EQ(m.view.SliceColumns(32, 32)->bytes(), 10 * (16 + 4));
  EXPECT_EQ(Make({.kind = WeightKind::kInt8}, 3, 50).view.FormatName(), "int8");
}

// A packed matrix knows its variant: it is multiplied and decoded by that one, whichever is the chosen one.
TEST(WeightView, APackedMatrixIsMultipliedByItsOwnVariant) {
  const auto x = RandomFloats(256, 5);
  for (const MatmulVariant& variant : MatmulVariants()) {
    EXPECT_EQ(variant.name, variant.run->name);
    if (!variant.RunsHere() || !variant.run->packed_bytes) continue;
    Matrix m = Make({.kind = WeightKind::kInt4, .group = 32}, kRows, 256);
    std::vector<float> expected(256), row(256);
    DecodeWeightRow(m.view, 5, expected.data());
    PackFor(*variant.run, true, &m);
    DecodeWeightRow(m.view, 5, row.data());
    EXPECT_EQ(expected, row) << variant.name;
    std::vector<float> out(kRows);
    Matmul({.x = x.data(), .tokens = 1, .pool = &Pool()},
           {.w = m.view, .out = out.data(), .out_stride = kRows});
    EXPECT_EQ(out, Product(*variant.run, m.view, x.data(), 1)) << variant.name;
  }
}

TEST(WeightViewDeathTest, TwoVariantsDoNotShareAProduct) {
  std::vector<const MatmulKernels*> packing;
  for (const MatmulVariant& variant : MatmulVariants())
    if (variant.RunsHere() && variant.run->packed_bytes) packing.push_back(variant.run);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (packing.size() < 2) GTEST_SKIP() << "fewer than two variants that pack run here";
  Matrix a = Make(WeightFormatSpec::Stored(DType::kQ8_0), 16, 64), b = a;
  b.view.data = b.data.data();
  PackFor(*packing[0], false, &a);
  PackFor(*packing[1], false, &b);
  const std::vector<float> x(64);
  std::vector<float> out(32);
  const MatmulOutput outputs[] = {{.w = a.view, .out = out.data(), .out_stride = 16},
                                  {.w = b.view, .out = out.data() + 16, .out_stride = 16}};
  const MatmulArgs args{.x = x.data(), .tokens = 1, .outputs = outputs, .pool = &Pool()};
  const std::string both = std::string(packing[1]->name) + ".*" + std::string(packing[0]->name);
  EXPECT_DEATH(Matmul(args), both);
  EXPECT_DEATH(packing[0]->run(args), both);
}

}  // namespace
}  // namespace celer
