#include "io/safetensors/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "io/file/test_folder.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string WithHeader(std::string_view header, size_t data_bytes) {
  std::string out(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(out.data(), &size, 8);
  out += header;
  for (size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i);
  return out;
}

Result<SafetensorsFile> ParseSafetensors(const std::string& bytes) {
  return SafetensorsFile::FromBytes(std::as_bytes(std::span(bytes)), "m.safetensors");
}

std::string SafetensorsErrorOf(const std::string& bytes) {
  const auto file = ParseSafetensors(bytes);
  return file ? "accepted" : file.error().message();
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string bytes = WithHeader(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[3],"data_offsets":[8,14]},)"
      R"("a":{"shape":[2,1],"data_offsets":[0,8],"dtype":"F32"},"none":{"dtype":"I64","shape":[0,5],"data_offsets":[8,8]},)"
      R"("scalar":{"dtype":"BF16","shape":[],"data_offsets":[14,16]}}   )",
      16);
  const auto file = ParseSafetensors(bytes);
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->tensors()[0].name, "a");  // in the order of the bytes
  EXPECT_EQ(file->tensors()[0].shape, (Shape{2, 1}));
  EXPECT_EQ(file->Find("b")->dtype, DType::kF16);
  EXPECT_EQ(file->Find("b")->bytes[0], std::byte{8});
  EXPECT_EQ(file->Find("none")->bytes.size(), 0u);
  EXPECT_EQ(file->Find("scalar")->shape.rank(), 0);
  EXPECT_EQ(file->Find("c"), nullptr);
  EXPECT_EQ(file->metadata().at("format"), "pt");
}

TEST(Safetensors, EveryType) {
  for (const auto& [name, size] : {std::pair<const char*, int>{"BOOL", 1},
                                   {"U8", 1},
                                   {"I8", 1},
                                   {"F8_E4M3", 1},
                                   {"I16", 2},
                                   {"F16", 2},
                                   {"BF16", 2},
                                   {"I32", 4},
                                   {"F32", 4},
                                   {"F64", 8},
                                   {"I64", 8}}) {
    const std::string header = std::string(R"({"x":{"dtype":")") + name +
                               R"(","shape":[3],"data_offsets":[0,)" + std::to_string(3 * size) + "]}}";
    const std::string bytes = WithHeader(header, static_cast<size_t>(3 * size));
    const auto file = ParseSafetensors(bytes);
    ASSERT_TRUE(file) << file.error().message();
    EXPECT_EQ(SafetensorsTypeName(file->tensors()[0].dtype), name);
  }
  EXPECT_THAT(SafetensorsErrorOf(WithHeader(R"({"x":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})", 8)),
              HasSubstr("tensor 'x' has the type 'C64', which is not supported"));
}

TEST(Safetensors, LyingHeadersAreRefused) {
  EXPECT_THAT(SafetensorsErrorOf(""), HasSubstr("too few"));
  EXPECT_THAT(SafetensorsErrorOf("1234567"), HasSubstr("too few"));
  EXPECT_THAT(SafetensorsErrorOf(std::string(8, '\xff')), HasSubstr("claims 18446744073709551615 bytes"));
  EXPECT_THAT(SafetensorsErrorOf(WithHeader("{}", 0).substr(0, 9)), HasSubstr("claims 2 bytes"));
  for (const char* header :
       {"", "[]", "{", "{}x", "nul", "{\"a\":1}", "{\"a\":[]}", "{\"a\":\"s\"}", "\xff", "{\"\xff\":1}"})
    EXPECT_NE(SafetensorsErrorOf(WithHeader(header, 0)), "accepted") << header;
  EXPECT_EQ(SafetensorsErrorOf(WithHeader("{}", 0)), "accepted");  // no tensors at all is a valid file
}

struct BadTensor {
  const char* body;
  const char* says;
};

TEST(Safetensors, LyingTensorsAreRefused) {
  const BadTensor cases[] = {
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", "4 bytes of data, but F32 [2] needs 8"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,8])", "8 bytes of data, but F32 [1] needs 4"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[4,12])", "do not lie in the 8 bytes"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", "do not lie in"},
      {R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])", "is too large"},
      {R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])",
       "is too large"},  // x4 wraps to 4
      {R"("dtype":"F32","shape":[0,9223372036854775807,9223372036854775807],"data_offsets":[0,0])",
       "after the last"},
      {R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])", "too large"},
      {R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8])", "'shape' is"},
      {R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])", "'shape' is -2"},
      {R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])", "'shape' is 2.0"},
      {R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])", "'shape' is a string"},
      {R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])", "'shape' is an array"},
      {R"("dtype":"F32","shape":2,"data_offsets":[0,8])", "'shape' is 2"},
      {R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])", "more than 8 numbers"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0])", "has 1 numbers, not 2"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])", "more than 2 numbers"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])", "too large"},
      {R"("dtype":"F32","shape":[2])", "'data_offsets' is missing"},
      {R"("dtype":"F32","data_offsets":[0,8])", "'shape' is missing"},
      {R"("shape":[2],"data_offsets":[0,8])", "'dtype' is missing"},
      {R"("dtype":7,"shape":[2],"data_offsets":[0,8])", "'dtype' is 7"},
      {R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])", "'dtype' comes twice"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1)", "unknown field 'more'"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,4])", "4 bytes after the last tensor belong to none"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[4,8])", "leaving a hole"},
  };
  for (const BadTensor& bad : cases) {
    const std::string header = std::string("{\"t\":{") + bad.body + "}}";
    EXPECT_THAT(SafetensorsErrorOf(WithHeader(header, 8)), HasSubstr(bad.says)) << bad.body;
    EXPECT_THAT(SafetensorsErrorOf(WithHeader(header, 8)), HasSubstr("m.safetensors: ")) << bad.body;
  }
}

TEST(Safetensors, OverlapsTwinsAndNestingAreRefused) {
  const std::string one = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  EXPECT_THAT(SafetensorsErrorOf(WithHeader("{\"a\":" + one + ",\"a\":" + one + "}", 4)),
              HasSubstr("'a' comes twice"));
  EXPECT_THAT(SafetensorsErrorOf(WithHeader("{\"a\":" + one + ",\"b\":" + one + "}", 4)),
              HasSubstr("inside the tensor before"));
  EXPECT_THAT(SafetensorsErrorOf(WithHeader(
                  "{\"a\":" + one + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", 7)),
              HasSubstr("inside the tensor before"));
  EXPECT_THAT(SafetensorsErrorOf(WithHeader(R"({"__metadata__":{"a":"1","a":"2"}})", 0)),
              HasSubstr("'a' twice"));
  EXPECT_THAT(SafetensorsErrorOf(WithHeader(R"({"__metadata__":{},"__metadata__":{}})", 0)),
              HasSubstr("comes twice"));
  EXPECT_THAT(SafetensorsErrorOf(WithHeader(R"({"__metadata__":{"a":{"b":"c"}}})", 0)),
              HasSubstr("an object"));
  EXPECT_THAT(SafetensorsErrorOf(WithHeader(R"({"__metadata__":{"a":1}})", 0)),
              HasSubstr("'a' in the header is 1"));
  EXPECT_NE(SafetensorsErrorOf(WithHeader("{\"a\":" + std::string(1'000'000, '[') + "}", 0)), "accepted");
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += "{\"a\":";
  EXPECT_NE(SafetensorsErrorOf(WithHeader(deep, 0)), "accepted");
  // A name cannot write to the terminal or fill it.
  const std::string evil =
      SafetensorsErrorOf(WithHeader("{\"\\u001b[2J" + std::string(5000, 'x') + "\":{}}", 0));
  EXPECT_THAT(evil, HasSubstr("\\x1b[2Jxxx"));
  EXPECT_LT(evil.size(), 300u);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string bytes = WithHeader(
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
      12);
  ASSERT_EQ(SafetensorsErrorOf(bytes), "accepted");
  for (size_t length = 0; length < bytes.size(); ++length)
    ASSERT_NE(SafetensorsErrorOf(bytes.substr(0, length)), "accepted") << length;
}

TEST(Safetensors, WritesWhatItReads) {
  const TestFolder folder;
  std::vector<float> numbers(15);
  std::iota(numbers.begin(), numbers.end(), -3.0f);
  const std::string text = "xyz";
  const TensorRecord records[] = {
      {"weird \"name\"\n", DType::kU8, {3}, std::as_bytes(std::span(text))},
      {"w", DType::kF32, {3, 5}, std::as_bytes(std::span(numbers))},  // at an odd offset
      {"empty", DType::kBf16, {0}, {}},
  };
  const fs::path path = folder / "out.safetensors";
  const auto written = WriteSafetensors(path, records, {{"format", "pt"}, {"note", "a \"quoted\" one"}});
  ASSERT_TRUE(written) << written.error().message();
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->metadata().at("note"), "a \"quoted\" one");
  ASSERT_EQ(file->tensors().size(), 3u);
  const TensorRecord* w = file->Find("w");
  ASSERT_TRUE(w);
  EXPECT_EQ(w->shape, (Shape{3, 5}));
  EXPECT_EQ(std::memcmp(w->bytes.data(), numbers.data(), w->bytes.size()), 0);
  file->DropPages(*w);
  EXPECT_EQ(std::memcmp(w->bytes.data(), numbers.data(), w->bytes.size()), 0);
  EXPECT_EQ(file->Find("weird \"name\"\n")->bytes.size(), 3u);
}

TEST(Safetensors, WriterRefusesAndLeavesNothing) {
  const TestFolder folder;
  const fs::path path = folder / "out.safetensors";
  const TensorSpec block[] = {{"q", DType::kQ4_0, {32}}};
  EXPECT_FALSE(
      WriteSafetensors(path, block, {}, [](const TensorSpec&, const TensorSink&) { return Status(); }));
  const TensorSpec twins[] = {{"q", DType::kU8, {1}}, {"q", DType::kU8, {1}}};
  EXPECT_FALSE(
      WriteSafetensors(path, twins, {}, [](const TensorSpec&, const TensorSink&) { return Status(); }));
  const TensorSpec one[] = {{"q", DType::kU8, {4}}};
  const std::byte bytes[5] = {};
  for (const size_t count : {3u, 5u}) {
    const auto status = WriteSafetensors(path, one, {}, [&](const TensorSpec&, const TensorSink& sink) {
      return sink(std::span(bytes).first(count));
    });
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message(), HasSubstr("tensor 'q'"));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_FALSE(WriteSafetensors(folder / "no/such/folder", one, {},
                                [](const auto&, const auto&) { return Status(); }));
}

std::string OneTensor(const std::string& name) {
  return WithHeader("{\"" + name + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
}

std::string OpenError(const fs::path& path) {
  const auto model = SafetensorsModel::Open(path);
  return model ? "accepted" : model.error().message();
}

TEST(SafetensorsModel, SingleFile) {
  const TestFolder folder;
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("holds neither model.safetensors nor"));
  folder.Write("model.safetensors", OneTensor("a"));
  const auto model = SafetensorsModel::Open(folder.path());
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_TRUE(model->Find("a"));
  EXPECT_TRUE(SafetensorsModel::Open(folder / "model.safetensors"));
  EXPECT_THAT(OpenError(folder / "none.safetensors"), HasSubstr("no such file"));
}

TEST(SafetensorsModel, Shards) {
  const TestFolder folder;
  folder.Write("s1.safetensors", OneTensor("a"));
  folder.Write("s2.safetensors", OneTensor("b"));
  folder.Write(
      "s3.safetensors",
      WithHeader(
          R"({"c":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"x":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})",
          5));
  const auto index = [&](const std::string& map) {
    folder.Write("model.safetensors.index.json", "{\"metadata\":{},\"weight_map\":" + map + "}");
  };
  index(R"({"a":"s1.safetensors","b":"s2.safetensors","c":"s3.safetensors"})");
  auto opened = SafetensorsModel::Open(folder.path());
  ASSERT_TRUE(opened) << opened.error().message();
  const SafetensorsModel model = std::move(*opened);  // records stay valid
  EXPECT_EQ(model.tensors().size(), 3u);
  EXPECT_EQ(model.files().size(), 3u);
  EXPECT_EQ(model.extra_tensors(), std::vector<std::string>{"x"});
  EXPECT_EQ(model.Find("x"), nullptr);
  EXPECT_EQ(model.Find("c")->bytes[3], std::byte{3});
  model.DropPages(*model.Find("c"));
  EXPECT_EQ(model.Find("c")->bytes[3], std::byte{3});

  index(R"({"a":"s1.safetensors","b":"s1.safetensors"})");
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("tensor 'b' is not in s1.safetensors"));
  index(R"({"a":"s9.safetensors"})");
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("names the file 's9.safetensors', which is not in"));
  index(R"({"a":7})");
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("tensor 'a' has no file name"));
  index("{}");
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("names no tensors"));
  index("[]");
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("'weight_map'"));
  folder.Write("model.safetensors.index.json", "{");
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("not valid JSON"));
}

TEST(SafetensorsModel, ShardsMayNotLeaveTheFolder) {
  const TestFolder folder;
  folder.Write("outside.safetensors", OneTensor("a"));
  fs::create_directories(folder / "model");
  fs::create_symlink("../outside.safetensors", folder / "model/link.safetensors");
  const std::string absolute = (folder / "outside.safetensors").string();
  for (const std::string& name :
       {std::string("../outside.safetensors"), absolute, std::string("link.safetensors")}) {
    folder.Write("model/model.safetensors.index.json", "{\"weight_map\":{\"a\":\"" + name + "\"}}");
    EXPECT_THAT(OpenError(folder / "model"), HasSubstr("names the file '")) << name;
  }
}

TEST(SafetensorsModel, LinksOfTheUserAreFollowed) {
  const TestFolder folder;
  folder.Write("elsewhere/weights.safetensors", OneTensor("a"));
  folder.Write("elsewhere/s1.safetensors", OneTensor("b"));
  // The folder's one file, whatever it is called there.
  fs::create_directories(folder / "one");
  fs::create_symlink("../elsewhere/weights.safetensors", folder / "one/model.safetensors");
  auto one = SafetensorsModel::Open(folder / "one");
  ASSERT_TRUE(one) << one.error().message();
  EXPECT_TRUE(one->Find("a"));
  // A shard that keeps its name.
  fs::create_directories(folder / "shards");
  fs::create_symlink(folder / "elsewhere/s1.safetensors", folder / "shards/s1.safetensors");
  folder.Write("shards/model.safetensors.index.json", R"({"weight_map":{"b":"s1.safetensors"}})");
  auto shards = SafetensorsModel::Open(folder / "shards");
  ASSERT_TRUE(shards) << shards.error().message();
  EXPECT_TRUE(shards->Find("b"));
}

}  // namespace
}  // namespace celer
