// What is not finite in the activations is not finite in the products, in every variant: integers must not
// make numbers of it.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <vector>

#include "formats/decode.h"
#include "formats/int4.h"
#include "formats/int8.h"
#include "kernels/llm/matmul/matmul.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

ThreadPool& Pool() {
  static ThreadPool pool({.threads = 2});
  return pool;
}

struct Matrix {
  std::vector<std::byte> data, packed;
  std::vector<float> scales;
  std::vector<Int4Group> params;
  WeightView view;
};

constexpr int64_t kRows = 41, kCols = 512;

Matrix Make(WeightView::Kind kind, DType dtype, int64_t group, const MatmulVariant& variant) {
  Matrix m;
  const auto values = RandomFloats(kRows * kCols, 3);
  m.view = {.kind = kind, .dtype = dtype, .rows = kRows, .cols = kCols, .group = group};
  m.view.row_bytes = kind == WeightView::Kind::kInt8   ? kCols
                     : kind == WeightView::Kind::kInt4 ? kCols / 2
                                                       : *BytesFor(dtype, kCols);
  m.data.resize(kRows * m.view.row_bytes);
  m.scales.resize(group > 0 ? static_cast<size_t>(kRows * kCols / group) : 0);
  m.params.resize(m.scales.size());
  for (int64_t r = 0; r < kRows; ++r) {
    const float* from = values.data() + r * kCols;
    std::byte* to = m.data.data() + r * m.view.row_bytes;
    if (kind == WeightView::Kind::kInt8)
      EncodeInt8Row({kRows, kCols, group}, from, reinterpret_cast<int8_t*>(to),
                    m.scales.data() + r * kCols / group);
    else if (kind == WeightView::Kind::kInt4)
      EncodeInt4Row({kRows, kCols, group}, from, reinterpret_cast<uint8_t*>(to),
                    m.params.data() + r * kCols / group);
    else
      EncodeRow(dtype, from, kCols, to);
  }
  m.view.data = m.data.data();
  if (kind == WeightView::Kind::kInt8) m.view.scales = m.scales.data();
  if (kind == WeightView::Kind::kInt4) m.view.scales = m.params.data();
  if (variant.run->packed_bytes) m.packed.resize(variant.run->packed_bytes(m.view));
  if (!m.packed.empty()) {
    variant.run->pack(m.view, Pool(), m.packed.data());
    m.view = PackedView(m.view, *variant.run, m.packed.data());
  }
  return m;
}

void ExpectKept(const MatmulVariant& variant, const Matrix& m) {
  for (const int64_t tokens : {1, 2, 3, 5, 19})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()})
      for (const int64_t col : {int64_t{0}, int64_t{37}, int64_t{262}, kCols - 1}) {
        const auto run = [&](const std::vector<float>& x) {
          std::vector<float> out(tokens * kRows);
          const MatmulOutput to{.w = m.view, .out = out.data(), .out_stride = kRows};
          variant.run->run({.x = x.data(), .tokens = tokens, .outputs = {&to, 1}, .pool = &Pool()});
          return out;
        };
        std::vector<float> x = RandomFloats(tokens * kCols, 4);
        const std::vector<float> good = run(x);
        const int64_t at = tokens / 2;
        x[at * kCols + col] = bad;
        const std::vector<float> got = run(x);
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t r = 0; r < kRows; ++r) {
            const auto i = static_cast<size_t>(t * kRows + r);
            if (t == at)
              ASSERT_FALSE(std::isfinite(got[i])) << bad << " at " << col << ", row " << r << ", " << tokens;
            else
              ASSERT_EQ(got[i], good[i]) << "of another token, row " << r;
          }
      }
}

TEST(MatmulNotFinite, StaysSoInEveryVariant) {
  for (const auto& variant : MatmulVariants()) {
    if (!variant.RunsHere()) {
      std::cout << variant.name << " cannot run here\n";
      continue;
    }
    using Kind = WeightView::Kind;
    for (const DType dtype :
         {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
          DType::kQ5_1, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
      SCOPED_TRACE(::testing::Message() << variant.name << ", " << Name(dtype));
      ExpectKept(variant, Make(Kind::kStored, dtype, 0, variant));
    }
    for (const int64_t group : {int64_t{32}, kCols}) {
      SCOPED_TRACE(::testing::Message() << variant.name << ", int8 in groups of " << group);
      ExpectKept(variant, Make(Kind::kInt8, DType::kF32, group, variant));
    }
    SCOPED_TRACE(::testing::Message() << variant.name << ", int4");
    ExpectKept(variant, Make(Kind::kInt4, DType::kF32, 32, variant));
  }
}

}  // namespace
}  // namespace celer
