#include "io/gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/source_dir.h"
#include "io/file/test_folder.h"
#include "io/gguf/gguf_test_bytes.h"
#include "io/gguf/gguf_writer.h"

namespace celer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<GgufFile> ParseGguf(const std::string& bytes) {
  return GgufFile::FromBytes(std::as_bytes(std::span(bytes)), "m.gguf");
}

TEST(Gguf, TensorsOutermostFirst) {
  for (const uint32_t version : {2u, 3u}) {
    GgufBytes raw;
    raw.version = version;
    raw.tensors = {RawTensor("w", {64, 3}, 2, 128), RawTensor("norm", {5}, 0, 0)};  // Q4_0 [3, 64], F32 [5]
    raw.data_bytes = 128 + 3 * 36;
    const std::string bytes = raw.Make();
    const auto file = ParseGguf(bytes);
    ASSERT_TRUE(file) << file.error().message();
    EXPECT_EQ(file->version(), static_cast<int>(version));
    ASSERT_EQ(file->tensors().size(), 2u);
    const TensorRecord* w = file->Find("w");
    ASSERT_TRUE(w);
    EXPECT_EQ(w->shape, (Shape{3, 64}));
    EXPECT_EQ(w->dtype, DType::kQ4_0);
    EXPECT_EQ(w->bytes.size(), 108u);
    EXPECT_EQ(w->bytes[0], std::byte{128});
    EXPECT_EQ(file->Find("x"), nullptr);
  }
}

TEST(Gguf, EveryMetadataType) {
  GgufBytes raw;
  const auto add = [&](const char* key, GgufType type, const std::string& value) {
    raw.metadata.push_back(RawKey(key, type) + value);
  };
  add("u8", GgufType::kUint8, Raw<uint8_t>(200));
  add("i8", GgufType::kInt8, Raw<int8_t>(-100));
  add("u16", GgufType::kUint16, Raw<uint16_t>(60000));
  add("i16", GgufType::kInt16, Raw<int16_t>(-3));
  add("u32", GgufType::kUint32, Raw<uint32_t>(4'000'000'000));
  add("i32", GgufType::kInt32, Raw<int32_t>(7));
  add("f32", GgufType::kFloat32, Raw(1.5f));
  add("bool", GgufType::kBool, Raw<uint8_t>(1));
  add("str", GgufType::kString, RawString("llama"));
  add("u64", GgufType::kUint64, Raw(std::numeric_limits<uint64_t>::max()));
  add("i64", GgufType::kInt64, Raw(std::numeric_limits<int64_t>::min()));
  add("f64", GgufType::kFloat64, Raw(1e-6));
  add("strings", GgufType::kArray,
      Raw<uint32_t>(8) + Raw<uint64_t>(3) + RawString("a") + RawString("") + RawString("bc"));
  add("floats", GgufType::kArray, Raw<uint32_t>(6) + Raw<uint64_t>(2) + Raw(0.5f) + Raw(-2.0f));
  add("doubles", GgufType::kArray, Raw<uint32_t>(12) + Raw<uint64_t>(1) + Raw(0.25));
  add("ints", GgufType::kArray, Raw<uint32_t>(5) + Raw<uint64_t>(2) + Raw<int32_t>(-1) + Raw<int32_t>(9));
  add("bools", GgufType::kArray, Raw<uint32_t>(7) + Raw<uint64_t>(2) + Raw<uint8_t>(0) + Raw<uint8_t>(1));
  add("huge", GgufType::kArray,
      Raw<uint32_t>(10) + Raw<uint64_t>(1) + Raw(std::numeric_limits<uint64_t>::max()));
  add("empty", GgufType::kArray, Raw<uint32_t>(8) + Raw<uint64_t>(0));
  const std::string inner = Raw<uint32_t>(0) + Raw<uint64_t>(2) + "xy";
  add("nested", GgufType::kArray, Raw<uint32_t>(9) + Raw<uint64_t>(2) + inner + inner);
  const std::string bytes = raw.Make();
  auto parsed = ParseGguf(bytes);
  ASSERT_TRUE(parsed) << parsed.error().message();
  const GgufFile file = std::move(*parsed);

  EXPECT_EQ(file.GetUint("u8"), 200u);
  EXPECT_EQ(file.GetInt("i8"), -100);
  EXPECT_EQ(file.GetUint("i8"), std::nullopt);  // negative
  EXPECT_EQ(file.GetUint("u16"), 60000u);
  EXPECT_EQ(file.GetInt("i16"), -3);
  EXPECT_EQ(file.GetInt("u32"), 4'000'000'000);
  EXPECT_EQ(file.GetUint("i32"), 7u);
  EXPECT_EQ(file.GetUint("u64"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(file.GetInt("u64"), std::nullopt);  // out of range
  EXPECT_EQ(file.GetInt("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(file.GetFloat("f32"), 1.5);
  EXPECT_EQ(file.GetFloat("f64"), 1e-6);
  EXPECT_EQ(file.GetFloat("i16"), -3.0);
  EXPECT_EQ(file.GetBool("bool"), true);
  EXPECT_EQ(file.GetString("str"), "llama");
  EXPECT_EQ(file.GetUint("str"), std::nullopt);
  EXPECT_EQ(file.GetUint("f32"), std::nullopt);
  EXPECT_EQ(file.GetString("missing"), std::nullopt);
  EXPECT_FALSE(file.Has("missing"));
  EXPECT_THAT(file.GetStringArray("strings").value(), ElementsAre("a", "", "bc"));
  EXPECT_THAT(file.GetFloatArray("floats").value(), ElementsAre(0.5f, -2.0f));
  EXPECT_THAT(file.GetFloatArray("doubles").value(), ElementsAre(0.25f));
  EXPECT_THAT(file.GetIntArray("ints").value(), ElementsAre(-1, 9));
  EXPECT_THAT(file.GetIntArray("bools").value(), ElementsAre(0, 1));
  EXPECT_EQ(file.GetIntArray("huge"), std::nullopt);
  EXPECT_EQ(file.GetIntArray("floats"), std::nullopt);
  EXPECT_EQ(file.GetStringArray("ints"), std::nullopt);
  EXPECT_TRUE(file.GetStringArray("empty")->empty());
  EXPECT_EQ(file.FindValue("strings")->TypeName(), "str[3]");
  EXPECT_EQ(file.FindValue("strings")->ToText(2), "[\"a\", \"\", ...]");
  EXPECT_EQ(file.FindValue("ints")->ToText(), "[-1, 9]");
  EXPECT_EQ(file.FindValue("nested")->ToText(), "[2 arrays]");
  EXPECT_EQ(file.FindValue("f32")->ToText(), "1.5");
  EXPECT_EQ(file.FindValue("i64")->ToText(), "-9223372036854775808");
  EXPECT_EQ(file.metadata().size(), 20u);
}

TEST(Gguf, WriterMakesWhatTheReaderReads) {
  const TestFolder folder;
  GgufWriter writer(64);
  writer.SetString("general.architecture", "llama");
  writer.SetUint32("llama.block_count", 2);
  writer.SetInt32("i", -5);
  writer.SetUint64("u", uint64_t{1} << 40);
  writer.SetFloat32("eps", 1e-5f);
  writer.SetBool("synthetic", true);
  const std::string tokens[] = {"a", "b\0c", ""};
  writer.SetStringArray("tokens", tokens);
  const float scores[] = {0.5f, -1.0f};
  writer.SetFloatArray("scores", scores);
  const int32_t types[] = {1, 2, 3};
  writer.SetIntArray("types", types);
  writer.AddTensor({"a", DType::kF32, {7}});
  writer.AddTensor({"b", DType::kQ8_0, {3, 64}});
  writer.AddTensor({"c", DType::kBf16, {2, 3, 5}});
  const auto path = folder / "out.gguf";
  const auto written = writer.Write(path, [](const TensorSpec& tensor, const TensorSink& sink) -> Status {
    const auto size = static_cast<size_t>(*BytesFor(tensor.dtype, *tensor.shape.elements()));
    const std::vector<std::byte> half(size / 2, std::byte{static_cast<unsigned char>(tensor.name[0])});
    CELER_RETURN_IF_ERROR(sink(half));  // in two pieces
    return sink(std::vector<std::byte>(size - size / 2, std::byte{1}));
  });
  ASSERT_TRUE(written) << written.error().message();
  EXPECT_EQ(std::filesystem::file_size(path), static_cast<uintmax_t>(writer.FileBytes()));

  auto opened = GgufFile::Open(path);
  ASSERT_TRUE(opened) << opened.error().message();
  const GgufFile file = std::move(*opened);  // the views stay valid
  EXPECT_EQ(file.alignment(), 64);
  EXPECT_EQ(file.GetString("general.architecture"), "llama");
  EXPECT_EQ(file.GetUint("llama.block_count"), 2u);
  EXPECT_EQ(file.GetInt("i"), -5);
  EXPECT_EQ(file.GetUint("u"), uint64_t{1} << 40);
  EXPECT_EQ(file.GetFloat("eps"), double{1e-5f});
  EXPECT_EQ(file.GetBool("synthetic"), true);
  EXPECT_EQ(file.GetStringArray("tokens")->size(), 3u);
  EXPECT_THAT(file.GetFloatArray("scores").value(), ElementsAre(0.5f, -1.0f));
  EXPECT_THAT(file.GetIntArray("types").value(), ElementsAre(1, 2, 3));
  EXPECT_EQ(file.Find("c")->shape, (Shape{2, 3, 5}));
  for (const TensorRecord& tensor : file.tensors()) {
    EXPECT_EQ(tensor.bytes.front(), std::byte{static_cast<unsigned char>(tensor.name[0])});
    EXPECT_EQ(tensor.bytes.back(), std::byte{1});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes.data()) % 64, 0u);
    file.DropPages(tensor);
    EXPECT_EQ(tensor.bytes.back(), std::byte{1});
  }
}

TEST(Gguf, WriterHoldsTensorsToTheirSize) {
  const TestFolder folder;
  GgufWriter writer;
  writer.AddTensor({"a", DType::kI8, {4}});
  const std::byte bytes[5] = {};
  for (const size_t count : {3u, 5u}) {
    const auto status = writer.Write(folder / "x.gguf", [&](const TensorSpec&, const TensorSink& sink) {
      return sink(std::span(bytes).first(count));
    });
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message(), HasSubstr("tensor 'a'"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_DEATH(writer.AddTensor({"a", DType::kI8, {4}}), "check failed");
  EXPECT_DEATH(writer.AddTensor({"b", DType::kQ4_0, {33}}), "check failed");
}

// Made by the `gguf` Python package (tests/fuzz/make_corpus.py).
TEST(Gguf, ReadsAFileOfThePythonPackage) {
  const auto file = GgufFile::Open(std::string(kSourceDir) + "/tests/fuzz/corpus/gguf/python_package.gguf");
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->GetString("general.architecture"), "llama");
  EXPECT_EQ(file->GetUint("llama.block_count"), 1u);
  EXPECT_THAT(file->GetStringArray("tokenizer.ggml.tokens").value(), ElementsAre("<s>", "a", "\xe6\xa8\xa1"));
  const TensorRecord* w = file->Find("blk.0.attn_q.weight");
  ASSERT_TRUE(w);
  EXPECT_EQ(w->shape, (Shape{2, 32}));
  EXPECT_EQ(w->dtype, DType::kQ4_0);
  const TensorRecord* norm = file->Find("output_norm.weight");
  ASSERT_TRUE(norm);
  float first = 0;
  std::memcpy(&first, norm->bytes.data() + 4, 4);
  EXPECT_EQ(first, 1.0f);
}

TEST(Gguf, TypesHaveTheirNumbers) {
  EXPECT_EQ(GgufTensorTypeId(DType::kF32), 0u);
  EXPECT_EQ(GgufTensorTypeId(DType::kQ5_0), 6u);
  EXPECT_EQ(GgufTensorTypeId(DType::kQ4_K), 12u);
  EXPECT_EQ(GgufTensorTypeId(DType::kIq4Nl), 20u);
  EXPECT_EQ(GgufTensorTypeId(DType::kBf16), 30u);
  EXPECT_FALSE(GgufTensorTypeId(DType::kFp8E4M3));
  EXPECT_EQ(GgufTensorTypeName(14), "Q6_K");
  EXPECT_EQ(GgufTensorTypeName(20), "IQ4_NL");
  EXPECT_EQ(GgufTensorTypeName(23), "IQ4_XS");  // not read
  EXPECT_EQ(GgufTensorTypeName(99), "type 99");
  EXPECT_EQ(GgufFileType(DType::kQ8_0), 7u);
  EXPECT_EQ(GgufFileType(DType::kQ4_K), 14u);
  EXPECT_EQ(GgufFileType(DType::kIq4Nl), 25u);
  EXPECT_FALSE(GgufFileType(DType::kI8));
}

}  // namespace
}  // namespace celer
