#include "weights/value_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "formats/decode.h"
#include "formats/test_rows.h"
#include "weights/weight_store.h"

namespace celer {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

ThreadPool& Pool() {
  static ThreadPool pool({.threads = 2});
  return pool;
}

struct Matrix {
  std::vector<std::byte> bytes;
  WeightView view;
};
Matrix Make(DType dtype, int64_t rows, int64_t cols, float scale = 1) {
  Matrix m;
  if (std::ranges::find(ReadOnlyBlockTypes(), dtype) != ReadOnlyBlockTypes().end()) {
    m.bytes = RandomWeightRow(dtype, rows * cols, 1, scale);
  } else {
    std::vector<float> values(rows * cols);
    for (size_t i = 0; i < values.size(); ++i) values[i] = scale * (static_cast<float>(i * 7 % 101) / 50 - 1);
    m.bytes.resize(*BytesFor(dtype, rows * cols));
    EncodeRow(dtype, values.data(), rows * cols, m.bytes.data());
  }
  m.view = {.dtype = dtype,
            .rows = rows,
            .cols = cols,
            .data = m.bytes.data(),
            .row_bytes = *BytesFor(dtype, cols),
            .name = "w"};
  return m;
}

// Where the f16 numbers of a block stand.
std::vector<size_t> Halves(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kQ6_K:
      return {208};
    case DType::kTq1_0:
      return {52};
    case DType::kTq2_0:
      return {64};
    case DType::kMxfp4:  // their scales are no f16
    case DType::kNvfp4:
    case DType::kIq1M:
      return {};
    default:
      return {0};
  }
}

TEST(ValueCheck, FindsWhatIsNotFiniteInEveryFormat) {
  std::vector<DType> dtypes(WeightTypes().begin(), WeightTypes().end());
  dtypes.insert(dtypes.end(), ReadOnlyBlockTypes().begin(), ReadOnlyBlockTypes().end());
  for (const DType dtype : dtypes) {
    SCOPED_TRACE(Name(dtype));
    const int64_t rows = 700, cols = 512;
    Matrix m = Make(dtype, rows, cols);
    ASSERT_TRUE(SurelyInRange(m.view, 0, rows, kAnyFinite)) << "ordinary weights take the quick way";
    ASSERT_TRUE(SurelyInRange(m.view, 0, rows, kHalfRange));
    ASSERT_TRUE(CheckValues(m.view, kAnyFinite, Pool()));
    const auto block_bytes = static_cast<size_t>(Info(dtype).block_bytes);
    for (const int64_t row : {int64_t{0}, int64_t{3}, rows - 1})
      for (const size_t half : Halves(dtype))
        for (const float bad : {kNan, kInf, -kInf}) {
          std::byte* at = m.bytes.data() + row * m.view.row_bytes + m.view.row_bytes -
                          static_cast<int64_t>(block_bytes) + static_cast<int64_t>(half);
          const size_t bytes = dtype == DType::kF32 ? 4 : 2;
          std::byte before[4];
          std::memcpy(before, at, bytes);
          const uint32_t bits = std::bit_cast<uint32_t>(bad);
          const uint16_t f16 = std::isnan(bad) ? 0x7e01 : bad > 0 ? 0x7c00 : 0xfc00;
          const auto bf16 = static_cast<uint16_t>(bits >> 16);
          if (dtype == DType::kF32)
            std::memcpy(at, &bits, 4);
          else
            std::memcpy(at, dtype == DType::kBf16 ? &bf16 : &f16, 2);
          const Status status = CheckValues(m.view, kAnyFinite, Pool());
          std::memcpy(at, before, bytes);
          ASSERT_FALSE(status) << bad << " in row " << row;
          EXPECT_THAT(status.error().message(), HasSubstr("tensor 'w' holds "));
          EXPECT_THAT(status.error().message(), HasSubstr(" at row " + std::to_string(row) + ", column "));
        }
    EXPECT_TRUE(CheckValues(m.view, kAnyFinite, Pool()));
  }
}

// An f16 in four parts, and powers of two.
TEST(ValueCheck, FindsScalesThatAreNoNumbers) {
  Matrix m = Make(DType::kIq1M, 3, 512);
  ASSERT_TRUE(CheckValues(m.view, kAnyFinite, Pool()));
  std::byte* const block = m.bytes.data() + 2 * m.view.row_bytes + 56;
  for (int i = 0; i < 4; ++i)  // infinity: 0x7c00
    block[49 + 2 * i] = (block[49 + 2 * i] & std::byte{15}) | std::byte(i == 3 ? 0x70 : i == 2 ? 0xc0 : 0);
  EXPECT_THAT(CheckValues(m.view, kAnyFinite, Pool()).error().message(),
              HasSubstr("inf at row 2, column 256"));

  Matrix mx = Make(DType::kMxfp4, 3, 64);
  mx.bytes[2 * mx.view.row_bytes + 17] = std::byte{255};
  EXPECT_THAT(CheckValues(mx.view, kAnyFinite, Pool()).error().message(), HasSubstr("inf at row 2, column "));
}

TEST(ValueCheck, FindsWhatIsNotFiniteInFp8) {
  const int64_t rows = 37, cols = 256;
  std::vector<std::byte> codes(rows * cols);
  for (size_t i = 0; i < codes.size(); ++i) {  // all numbers there are
    const auto code = static_cast<uint8_t>(i);
    codes[i] = std::byte{(code & 0x7f) == 0x7f ? uint8_t{0} : code};
  }
  std::vector<float> scales(static_cast<size_t>(rows) * 2, 0.01f);
  const WeightView w{.kind = WeightKind::kFp8,
                     .rows = rows,
                     .cols = cols,
                     .data = codes.data(),
                     .row_bytes = cols,
                     .scales = scales.data(),
                     .group = 128,
                     .name = "w"};
  ASSERT_TRUE(SurelyInRange(w, 0, rows, kFp8Range));
  for (const std::byte nan : {std::byte{0x7f}, std::byte{0xff}}) {
    const std::byte before = std::exchange(codes[3 * cols + 130], nan);
    EXPECT_THAT(CheckValues(w, kFp8Range, Pool()).error().message(), HasSubstr("nan at row 3, column 130"));
    codes[3 * cols + 130] = before;
  }
  scales[9] = kInf;
  EXPECT_THAT(CheckValues(w, kFp8Range, Pool()).error().message(), HasSubstr("at row 4, column 128"));
  scales[9] = 200;  // a kernel takes scales of up to 128
  EXPECT_THAT(CheckValues(w, kFp8Range, Pool()).error().message(), HasSubstr("fp8 holds at most 57344"));
}

TEST(ValueCheck, LargeScalesAreLookedAtClosely) {
  // 60000 may be more than a quick look at the scales lets pass, and is less than 65504.
  for (const DType dtype :
       {DType::kQ8_0, DType::kQ4_0, DType::kQ6_K, DType::kQ4_K, DType::kMxfp4, DType::kF32}) {
    SCOPED_TRACE(Name(dtype));
    // MXFP4 would round 60000 up to 65536.
    const Matrix fits = Make(dtype, 8, 256, dtype == DType::kMxfp4 ? 50000 : 60000),
                 beyond = Make(dtype, 8, 256, 90000);
    EXPECT_TRUE(CheckValues(fits.view, kHalfRange, Pool()));
    const Status status = CheckValues(beyond.view, kHalfRange, Pool());
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message(), HasSubstr("and f16 holds at most 65504; try `weights` f32"));
    EXPECT_TRUE(CheckValues(beyond.view, kAnyFinite, Pool()));
  }
}

// One tensor "w" [4, 64] of bf16 or f32, and a vector "v".
class Source final : public TensorSource {
 public:
  explicit Source(float bad) {
    std::vector<float> values(256, 0.25f), vector(64, 1.0f);
    values[130] = bad;
    vector[5] = bad;
    const auto add = [&](const char* name, DType dtype, Shape shape, const std::vector<float>& from) {
      auto& bytes =
          storage_.emplace_back(static_cast<size_t>(*BytesFor(dtype, static_cast<int64_t>(from.size()))));
      EncodeRow(dtype, from.data(), static_cast<int64_t>(from.size()), bytes.data());
      records_.push_back({name, dtype, shape, bytes});
    };
    add("w", DType::kF32, {4, 64}, values);
    add("stack", DType::kBf16, {2, 2, 64}, values);
    add("v", DType::kF32, {64}, vector);
  }
  const TensorRecord* Find(std::string_view name) const override {
    for (const TensorRecord& record : records_)
      if (record.name == name) return &record;
    return nullptr;
  }
  const std::vector<TensorRecord>& tensors() const override { return records_; }
  void DropPages(const TensorRecord&) const override {}
  const std::string& path() const override { return path_; }

 private:
  std::string path_ = "model.bin";
  std::vector<std::vector<std::byte>> storage_;
  std::vector<TensorRecord> records_;
};

TEST(ValueCheck, LoadingNamesTheTensor) {
  for (const float bad : {kNan, kInf}) {
    const Source source(bad);
    for (const char* weights : {"stored", "f32", "f16", "bf16", "int8", "int4"})
      for (const auto role : {WeightRole::kProjection, WeightRole::kTable}) {
        SCOPED_TRACE(weights);
        WeightStore store(source,
                          WeightPlan::Make(*WeightOptions::Parse(weights), source.tensors(), {{"w", role}}),
                          Pool());
        const auto matrix = store.Matrix("w", 4, 64);
        ASSERT_FALSE(matrix);
        EXPECT_EQ(matrix.error().code(), Error::Code::kCorrupt);
        EXPECT_THAT(matrix.error().message(), HasSubstr("model.bin: tensor 'w' holds "));
        EXPECT_THAT(matrix.error().message(), HasSubstr(" at row 2, column 2; weights must be finite"));
        const auto stack = store.Stack("stack", 2, 2, 64);
        ASSERT_FALSE(stack);
        EXPECT_THAT(stack.error().message(), HasSubstr("tensor 'stack' holds "));
        const auto vector = store.Vector("v", 64);
        ASSERT_FALSE(vector);
        EXPECT_THAT(vector.error().message(), HasSubstr("model.bin: tensor 'v' holds "));
        EXPECT_THAT(vector.error().message(), HasSubstr(" at element 5; weights must be finite"));
      }
  }
}

TEST(ValueCheck, WhatAFormatCannotHoldIsRefused) {
  const Source source(1e5f);
  for (const char* weights : {"stored", "f32", "bf16", "int8"}) {
    WeightStore store(source, *WeightOptions::Parse(weights), Pool());
    EXPECT_TRUE(store.Matrix("w", 4, 64)) << weights;
    EXPECT_TRUE(store.Vector("v", 64)) << weights;  // vectors are f32 whatever is chosen
  }
  for (const char* weights : {"f16", "int4"}) {
    WeightStore store(source, *WeightOptions::Parse(weights), Pool());
    const auto matrix = store.Matrix("w", 4, 64);
    ASSERT_FALSE(matrix) << weights;
    EXPECT_EQ(matrix.error().message(),
              std::string("model.bin: tensor 'w' holds 100000 at row 2, column 2, and ") + weights +
                  " holds at most 65504; try `weights` f32 or int8");
  }
}

}  // namespace
}  // namespace celer
