#include "weights/shard_source.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "formats/decode.h"

namespace celer {
namespace {

// Tensors in memory.
class MemorySource final : public TensorSource {
 public:
  const TensorRecord* Find(std::string_view name) const override { return table_.Find(name); }
  const std::vector<TensorRecord>& tensors() const override { return table_.records(); }
  void DropPages(const TensorRecord&) const override {}
  const std::string& path() const override { return path_; }
  const CodedTensor* Coded(std::string_view name) const override {
    const auto found = coded_.find(std::string(name));
    return found == coded_.end() ? nullptr : found->second.get();
  }

  // Numbers that are exact in every format below: whole, from -8 to 7, and 7.9375 once in a block.
  void Add(const std::string& name, const WeightFormatSpec& format, const Shape& shape) {
    const int rank = shape.rank();
    const int64_t cols = shape[rank - 1], rows = *shape.elements() / cols;
    std::vector<std::byte>& bytes = memory_[name];
    std::vector<std::byte>& scales = memory_[name + ".scales"];
    bytes.resize(static_cast<size_t>(rows * format.RowBytes(cols)));
    scales.resize(static_cast<size_t>(rows * format.ScaleBytes(cols)));
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c)
        row[static_cast<size_t>(c)] = static_cast<float>((r * 31 + c * 7) % 16 - 8);
      format.Encode(row.data(), cols, bytes.data() + r * format.RowBytes(cols),
                    scales.empty() ? nullptr : scales.data() + r * format.ScaleBytes(cols));
    }
    const DType dtype = format.stored() ? format.dtype : DType::kI8;
    EXPECT_TRUE(table_.Add({name, dtype, shape, bytes}));
    if (!scales.empty()) {
      EXPECT_TRUE(table_.Add({name + ".scales", DType::kF32, {rows, format.GroupsPerRow(cols)}, scales}));
    }
  }
  void AddCoded(std::unique_ptr<CodedTensor> coded, const Shape& shape) {
    EXPECT_TRUE(table_.Add({coded->name, DType::kF32, shape, {}}));
    const std::string name = coded->name;
    coded_[name] = std::move(coded);
  }

 private:
  TensorTable table_;
  std::map<std::string, std::vector<std::byte>> memory_;
  std::unordered_map<std::string, std::unique_ptr<CodedTensor>> coded_;
  std::string path_ = "memory";
};

// int8 rows with a scale to each group, as a code.
class Doubled final : public CodedTensor {
 public:
  Doubled(int64_t count_of, int64_t rows_of, int64_t cols_of) {
    name = "coded";
    count = count_of;
    rows = rows_of;
    cols = cols_of;
    scheme = "doubled";
    format = {.kind = WeightKind::kInt8, .group = 32};
  }
  void Row(int64_t row, std::byte* values, void* scales) const override {
    std::vector<float> floats(static_cast<size_t>(cols));
    for (int64_t c = 0; c < cols; ++c)
      floats[static_cast<size_t>(c)] = static_cast<float>((row * 5 + c * 3) % 64);
    format.Encode(floats.data(), cols, values, scales);
  }
};

// All of a tensor as floats, in one row after the other.
std::vector<float> Floats(const TensorSource& source, const std::string& name, int64_t cols) {
  const TensorRecord* const record = source.Find(name);
  EXPECT_TRUE(record) << name;
  if (!record) return {};
  const int64_t rows = *record->shape.elements() / cols;
  std::vector<float> out(static_cast<size_t>(rows * cols));
  if (const CodedTensor* coded = source.Coded(name)) {
    EXPECT_EQ(coded->count * coded->rows, rows);
    EXPECT_EQ(coded->cols, cols);
    std::vector<std::byte> values(static_cast<size_t>(coded->format.RowBytes(cols)));
    std::vector<float> scales(static_cast<size_t>(coded->format.ScaleBytes(cols) / 4 + 1));
    for (int64_t r = 0; r < rows; ++r) {
      coded->Row(r, values.data(), scales.data());
      coded->format.Decode(values.data(), scales.data(), cols, out.data() + r * cols);
    }
    return out;
  }
  if (record->dtype == DType::kI8) {
    const TensorRecord* const scales = source.Find(name + ".scales");
    const WeightFormatSpec format = {.kind = WeightKind::kInt8, .group = cols / scales->shape[1]};
    for (int64_t r = 0; r < rows; ++r)
      format.Decode(record->bytes.data() + r * cols, scales->bytes.data() + r * format.ScaleBytes(cols), cols,
                    out.data() + r * cols);
    return out;
  }
  const auto row_bytes = static_cast<int64_t>(record->bytes.size()) / rows;
  for (int64_t r = 0; r < rows; ++r)
    DecodeRow(record->dtype, record->bytes.data() + r * row_bytes, cols, out.data() + r * cols);
  return out;
}

std::vector<float> Part(const std::vector<float>& all, const TensorSlice& slice) {
  const int rank = slice.whole.rank();
  const int64_t cols = slice.whole[rank - 1], rows = rank > 1 ? slice.whole[rank - 2] : 1;
  const bool columns = slice.columns || rank == 1;
  std::vector<float> out;
  for (int64_t i = 0; i < std::ssize(all); ++i) {
    const int64_t at = columns ? i % cols : i / cols % rows;
    if (at >= slice.begin && at < slice.begin + slice.count) out.push_back(all[static_cast<size_t>(i)]);
  }
  return out;
}

TEST(ShardSource, PartsAreThoseOfTheWhole) {
  const WeightFormatSpec formats[] = {
      WeightFormatSpec::Stored(DType::kF32),  WeightFormatSpec::Stored(DType::kBf16),
      WeightFormatSpec::Stored(DType::kQ8_0), WeightFormatSpec::Stored(DType::kQ4_0),
      WeightFormatSpec::Stored(DType::kQ4_K), {.kind = WeightKind::kInt8, .group = 32},
      {.kind = WeightKind::kInt8, .group = 0}};
  for (const WeightFormatSpec& format : formats) {
    SCOPED_TRACE(format.Name());
    const int64_t step = format.ColumnStep(), cols = 3 * 256;
    const int64_t first = step == 1 ? 5 : step;
    const bool stacked_too = format.stored();
    const TensorSlice slices[] = {{{7, cols}, false, 0, 3},           {{7, cols}, false, 3, 4},
                                  {{7, cols}, true, first, 2 * step}, {{7, cols}, true, cols - step, step},
                                  {{4, 7, cols}, false, 2, 3},        {{4, 7, cols}, true, first, step}};
    for (const TensorSlice& slice : slices) {
      if (slice.whole.rank() == 3 && !stacked_too) continue;
      auto file = std::make_unique<MemorySource>();
      file->Add("w", format, slice.whole);
      file->Add("other", format, {2, cols});
      const std::vector<float> whole = Floats(*file, "w", cols), other = Floats(*file, "other", cols);
      auto shard = ShardSource::Open(std::move(file), {{"w", slice}, {"missing", slice}});
      ASSERT_TRUE(shard) << shard.error().message();
      EXPECT_EQ(Floats(**shard, "w", slice.columns ? slice.count : cols), Part(whole, slice));
      EXPECT_EQ(Floats(**shard, "other", cols), other);
      EXPECT_FALSE((*shard)->Find("missing"));
    }
  }
}

TEST(ShardSource, RowsStayInTheFile) {
  auto file = std::make_unique<MemorySource>();
  file->Add("w", WeightFormatSpec::Stored(DType::kF32), {8, 16});
  const std::byte* const at = file->Find("w")->bytes.data();
  auto shard = ShardSource::Open(std::move(file), {{"w", {{8, 16}, false, 2, 3}}});
  ASSERT_TRUE(shard);
  EXPECT_EQ((*shard)->Find("w")->bytes.data(), at + 2 * 16 * 4);
  EXPECT_EQ((*shard)->Find("w")->bytes.size(), 3U * 16 * 4);
  EXPECT_FALSE((*shard)->Coded("w"));
}

TEST(ShardSource, CodesAreCut) {
  for (const TensorSlice& slice :
       {TensorSlice{{2, 6, 96}, false, 1, 2}, {{2, 6, 96}, true, 32, 64}, {{2, 6, 96}, true, 0, 32}}) {
    auto file = std::make_unique<MemorySource>();
    file->AddCoded(std::make_unique<Doubled>(2, 6, 96), {2, 6, 96});
    const std::vector<float> whole = Floats(*file, "coded", 96);
    auto shard = ShardSource::Open(std::move(file), {{"coded", slice}});
    ASSERT_TRUE(shard) << shard.error().message();
    EXPECT_EQ(Floats(**shard, "coded", slice.columns ? slice.count : 96), Part(whole, slice));
  }
}

TEST(ShardSource, VectorsAreCut) {
  auto file = std::make_unique<MemorySource>();
  file->Add("b", WeightFormatSpec::Stored(DType::kF16), {40});
  const TensorSlice slice = {{40}, false, 10, 7};
  const std::vector<float> whole = Floats(*file, "b", 40);
  auto shard = ShardSource::Open(std::move(file), {{"b", slice}});
  ASSERT_TRUE(shard);
  EXPECT_EQ(Floats(**shard, "b", 7), Part(whole, slice));
}

TEST(ShardSource, WhatDoesNotFitIsRefused) {
  const auto refused = [](const WeightFormatSpec& format, const Shape& shape, const TensorSlice& slice) {
    auto file = std::make_unique<MemorySource>();
    file->Add("w", format, shape);
    auto shard = ShardSource::Open(std::move(file), {{"w", slice}});
    EXPECT_FALSE(shard);
    return shard ? std::string() : shard.error().message();
  };
  const WeightFormatSpec q8 = WeightFormatSpec::Stored(DType::kQ8_0);
  EXPECT_NE(refused(q8, {4, 96}, {{4, 96}, true, 16, 32}).find("only at multiples of 32"), std::string::npos);
  EXPECT_NE(refused(q8, {4, 96}, {{4, 64}, true, 0, 32}).find("has shape [4, 96], expected [4, 64]"),
            std::string::npos);
  EXPECT_NE(refused(q8, {64}, {{64}, false, 8, 16}).find("cannot be cut"), std::string::npos);
}

}  // namespace
}  // namespace celer
