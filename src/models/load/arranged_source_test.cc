#include "models/load/arranged_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "formats/decode.h"

namespace celer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A quantized tensor whose row r is r + 1 everywhere.
class FakeCoded final : public CodedTensor {
 public:
  void Row(int64_t row, std::byte* values, void*) const override {
    for (int64_t c = 0; c < cols; ++c) {
      const auto value = static_cast<float>(row + 1);
      std::memcpy(values + c * 4, &value, sizeof(value));
    }
  }
};

// A file whose tensors count from 0 on.
class CountingSource final : public TensorSource {
 public:
  CountingSource& Add(const std::string& name, Shape shape, DType dtype = DType::kF32) {
    const int64_t elements = *shape.elements();
    auto bytes = std::make_unique<std::vector<std::byte>>(static_cast<size_t>(*BytesFor(dtype, elements)));
    std::vector<float> values;
    for (int64_t i = 0; i < elements; ++i) values.push_back(static_cast<float>(i));
    EncodeRow(dtype, values.data(), elements, bytes->data());
    records_.push_back({name, dtype, shape, *bytes});
    storage_.push_back(std::move(bytes));
    return *this;
  }
  CountingSource& AddCoded(const std::string& name, int64_t rows, int64_t cols) {
    Add(name, {rows, cols});
    coded_.name = name;
    coded_.rows = rows;
    coded_.cols = cols;
    coded_.scheme = "gptq int4";
    coded_.format = WeightFormatSpec::Stored(DType::kF32);
    return *this;
  }

  const TensorRecord* Find(std::string_view name) const override {
    for (const TensorRecord& record : records_)
      if (record.name == name) return &record;
    return nullptr;
  }
  const std::vector<TensorRecord>& tensors() const override { return records_; }
  void DropPages(const TensorRecord&) const override {}
  const std::string& path() const override { return path_; }
  const CodedTensor* Coded(std::string_view name) const override {
    return !name.empty() && name == coded_.name ? &coded_ : nullptr;
  }

 private:
  std::string path_ = "model";
  std::vector<std::unique_ptr<std::vector<std::byte>>> storage_;
  std::vector<TensorRecord> records_;
  FakeCoded coded_;
};

struct Arranged {
  std::unique_ptr<CountingSource> file = std::make_unique<CountingSource>();
  TensorRules rules{kHfNames};
  std::unique_ptr<ArrangedSource> source = {};
  const TensorSource* in_file = nullptr;

  std::string Open() {
    in_file = file.get();
    auto opened = ArrangedSource::Open(std::move(file), rules);
    if (!opened) return opened.error().message();
    source = std::move(*opened);
    return "";
  }
  // The first element of each row.
  std::vector<float> Rows(const std::string& name) const {
    const TensorRecord& record = *source->Find(name);
    const int rank = record.shape.rank();
    const int64_t cols = record.shape[rank - 1], rows = *record.shape.elements() / cols;
    std::vector<float> out, row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
      if (const CodedTensor* coded = source->Coded(name))
        coded->Row(r, reinterpret_cast<std::byte*>(row.data()), nullptr);
      else
        DecodeRow(record.dtype, record.bytes.data() + r * *BytesFor(record.dtype, cols), cols, row.data());
      out.push_back(row[0]);
    }
    return out;
  }
  std::vector<float> Vector(const std::string& name) const {
    const TensorRecord& record = *source->Find(name);
    std::vector<float> out(static_cast<size_t>(record.shape[0]));
    DecodeRow(record.dtype, record.bytes.data(), record.shape[0], out.data());
    return out;
  }
};

TEST(ArrangedSource, PartsOneAfterTheOtherAreViewsOfTheFile) {
  Arranged a;
  a.file->Add("layers.7.qkv.weight", {8, 2}).Add("other", {3});
  a.rules.Split("layers.%.qkv.weight", {{"q.%", 4}, {"k.%", 2}, {"v.%", 2}});
  ASSERT_EQ(a.Open(), "");
  EXPECT_EQ(a.source->tensors().size(), 4);
  EXPECT_THAT(a.Rows("q.7"), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(a.Rows("k.7"), ElementsAre(8, 10));
  EXPECT_THAT(a.Rows("v.7"), ElementsAre(12, 14));
  EXPECT_EQ(a.source->Find("v.7")->bytes.data(),
            a.in_file->Find("layers.7.qkv.weight")->bytes.data() + ptrdiff_t{6} * 2 * 4);
  EXPECT_EQ(a.source->Coded("v.7"), nullptr);
  EXPECT_NE(a.source->Find("other"), nullptr);
  EXPECT_THAT(a.source->warnings(), IsEmpty());
}

TEST(ArrangedSource, BlocksOfQuantizedFormatsStayWhole) {
  Arranged a;
  a.file->Add("w", {4, 64}, DType::kQ8_0);
  a.rules.Split("w", {{"a", 1}, {"b", 1}}, 2);
  ASSERT_EQ(a.Open(), "");
  EXPECT_EQ(a.source->Coded("b")->format, WeightFormatSpec::Stored(DType::kQ8_0));
  std::vector<std::byte> row(static_cast<size_t>(*BytesFor(DType::kQ8_0, 64)));
  a.source->Coded("b")->Row(1, row.data(), nullptr);
  EXPECT_EQ(std::memcmp(row.data(), a.in_file->Find("w")->bytes.data() + 3 * row.size(), row.size()), 0);
}

TEST(ArrangedSource, PartsOfEachHead) {
  Arranged a;
  a.file->Add("qkv", {12, 2}).Add("bias", {12});
  a.rules.Split("qkv", {{"q", 2}, {"k", 2}, {"v", 2}}, 2);
  a.rules.Split("bias", {{"q_bias", 2}, {"k_bias", 2}, {"v_bias", 2}}, 2);
  ASSERT_EQ(a.Open(), "");
  EXPECT_THAT(a.Rows("q"), ElementsAre(0, 2, 12, 14));
  EXPECT_THAT(a.Rows("v"), ElementsAre(8, 10, 20, 22));
  EXPECT_THAT(a.Vector("k_bias"), ElementsAre(2, 3, 8, 9));
}

TEST(ArrangedSource, AlternatingRowsOfStackedExperts) {
  Arranged a;
  a.file->Add("experts", {2, 4, 3}).Add("biases", {2, 4});
  a.rules.Split("experts", {{"#.gate", 1}, {"#.up", 1}}, 2);
  a.rules.SplitElements("biases", {{"gate_bias", 1}, {"up_bias", 1}}, 2);
  ASSERT_EQ(a.Open(), "");
  EXPECT_THAT(a.Rows("0.gate"), ElementsAre(0, 6));
  EXPECT_THAT(a.Rows("0.up"), ElementsAre(3, 9));
  EXPECT_THAT(a.Rows("1.up"), ElementsAre(15, 21));
  EXPECT_THAT(a.Vector("up_bias"), ElementsAre(1, 3, 5, 7));
}

TEST(ArrangedSource, StacksStayStacksWithoutAPlaceForTheExpert) {
  Arranged a;
  a.file->Add("blk.0.gate_up", {2, 4, 3});
  a.rules.Split("blk.%.gate_up", {{"blk.%.gate", 2}, {"blk.%.up", 2}});
  ASSERT_EQ(a.Open(), "");
  EXPECT_EQ(a.source->Find("blk.0.up")->shape, Shape({2, 2, 3}));
  EXPECT_EQ(a.source->Coded("blk.0.up")->count, 2);
  EXPECT_THAT(a.Rows("blk.0.up"), ElementsAre(6, 9, 18, 21));
}

TEST(ArrangedSource, ColumnsBecomeRows) {
  Arranged a;
  a.file->Add("w", {2, 6}).Add("experts", {2, 2, 4});  // [columns, rows]
  a.rules.SplitTransposed("w", {{"a", 4}, {"b", 2}});
  a.rules.SplitTransposed("experts", {{"gate.#", 1}, {"up.#", 1}}, 2);
  ASSERT_EQ(a.Open(), "");
  EXPECT_EQ(a.source->Find("a")->shape, Shape({4, 2}));
  EXPECT_THAT(a.Rows("a"), ElementsAre(0, 1, 2, 3));
  float row[2];
  a.source->Coded("b")->Row(1, reinterpret_cast<std::byte*>(row), nullptr);
  EXPECT_THAT(row, ElementsAre(5, 11));
  a.source->Coded("up.1")->Row(1, reinterpret_cast<std::byte*>(row), nullptr);
  EXPECT_THAT(row, ElementsAre(11, 15));
}

TEST(ArrangedSource, WeightsThatAreStoredLessOne) {
  Arranged a;
  a.file->Add("model.layers.1.norm.weight", {3}, DType::kBf16).Add("model.norm.weight", {2});
  a.rules.Rename("model.layers.%.norm.weight", kHfNames.ffn_norm);
  a.rules.AddOne(kHfNames.ffn_norm);
  ASSERT_EQ(a.Open(), "");
  EXPECT_THAT(a.Vector("model.layers.1.post_attention_layernorm.weight"), ElementsAre(1, 2, 3));
  EXPECT_THAT(a.Vector("model.norm.weight"), ElementsAre(0, 1));
}

TEST(ArrangedSource, PrefixesAndWhatIsNotRead) {
  Arranged a;
  a.file->Add("language_model.model.embed.weight", {2})
      .Add("vision.0.weight", {2})
      .Add("vision.1.weight", {2});
  a.rules.Prefix("language_model.model.", "model.");
  a.rules.Rename("model.embed.weight", "model.embed_tokens.weight");
  a.rules.Skip("vision.", "images");
  ASSERT_EQ(a.Open(), "");
  ASSERT_EQ(a.source->tensors().size(), 1);
  EXPECT_EQ(a.source->tensors()[0].name, "model.embed_tokens.weight");
  EXPECT_THAT(a.source->warnings(), ElementsAre("model: 2 tensors are for images; they are not read"));
}

TEST(ArrangedSource, RowsOfQuantizedTensorsAreDecodedAsTheyWere) {
  Arranged a;
  a.file->AddCoded("qkv", 6, 2);
  a.rules.Split("qkv", {{"q", 3}, {"k", 3}});
  ASSERT_EQ(a.Open(), "");
  EXPECT_THAT(a.Rows("k"), ElementsAre(4, 5, 6));
  EXPECT_THAT(a.source->Coded("k")->scheme, HasSubstr("gptq int4"));

  Arranged renamed;
  renamed.file->AddCoded("w", 2, 2);
  renamed.rules.Rename("w", "a");
  ASSERT_EQ(renamed.Open(), "");
  EXPECT_THAT(renamed.Rows("a"), ElementsAre(1, 2));

  // Quantizers write rows of products, whatever the plain tensor has.
  Arranged turned;
  turned.file->AddCoded("w", 3, 2);
  turned.rules.SplitTransposed("w", {{"a", 1}, {"b", 2}});
  ASSERT_EQ(turned.Open(), "");
  EXPECT_THAT(turned.Rows("b"), ElementsAre(2, 3));

  Arranged blocks;
  blocks.file->Add("w", {32, 32}, DType::kQ8_0);
  blocks.rules.SplitTransposed("w", {{"a", 32}});
  EXPECT_EQ(
      blocks.Open(),
      "model: tensor 'w' is quantized (q8_0) and lies with its columns as rows, which cannot be turned");
}

TEST(ArrangedSource, ShapesThatDoNotFit) {
  Arranged a;
  a.file->Add("w", {5, 2});
  a.rules.Split("w", {{"a", 2}, {"b", 2}});
  EXPECT_EQ(a.Open(),
            "model: tensor 'w' has shape [5, 2], which cannot be split into rows: 2 of 'a', 2 of 'b'");
  for (const Shape& shape : {Shape{}, Shape{1, 1, 4, 2}, Shape{0, 2}, Shape{4, 0}}) {
    Arranged odd;
    odd.file->Add("w", shape);
    odd.rules.Split("w", {{"a", 2}, {"b", 2}});
    EXPECT_THAT(odd.Open(), HasSubstr("cannot be split"));
  }
  Arranged twice;
  twice.file->Add("w", {2}).Add("a", {2});
  twice.rules.Rename("w", "a");
  EXPECT_EQ(twice.Open(), "model: tensor 'a' is 'a', and so is another one");
}

}  // namespace
}  // namespace celer
