#include "io/llama2c/llama2c.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/source_dir.h"
#include "io/file/test_folder.h"

namespace celer {
namespace {

using testing::HasSubstr;

template <class T>
std::string Raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

struct Model {
  int version = 0;
  std::vector<int32_t> header = {8, 16, 2, 4,
                                 2, 10, 6};  // dim, hidden, layers, heads, kv heads, vocabulary, length
  bool shared = true;
  uint8_t shared_byte = 1;
  int32_t group = 4;
  std::string tail = {};

  size_t DataBytes() const {
    const auto dim = static_cast<size_t>(header[0]), hidden = static_cast<size_t>(header[1]);
    const auto layers = static_cast<size_t>(header[2]), kv = dim / 4 * 2, vocab = size_t{10};
    const size_t norms = 2 * layers * dim + dim;
    const size_t matrices =
        vocab * dim * (shared ? 1 : 2) + layers * (2 * dim * dim + 2 * kv * dim + 3 * hidden * dim);
    if (version == 2) return 4 * norms + matrices + 4 * (matrices / 4);
    return 4 * (norms + matrices) + (version == 0 ? 4 * 6 * (dim / 4) : 0);
  }

  std::string Make() const {
    std::string out;
    if (version > 0) out = Raw<uint32_t>(0x616b3432) + Raw<int32_t>(version);
    for (const int32_t field : header) out += Raw(field);
    if (version > 0) {
      out += Raw(shared_byte);
      if (version == 2) out += Raw(group);
      out.resize(256);
    }
    const size_t words = DataBytes() / 4;
    for (size_t i = 0; i < words; ++i) out += Raw(static_cast<float>(i));
    return out + tail;
  }
};

Result<Llama2cFile> ParseLlama2c(const std::string& bytes) {
  return Llama2cFile::FromBytes(std::as_bytes(std::span(bytes)), "m.bin");
}

std::string Llama2cErrorOf(const Model& model) {
  const std::string bytes = model.Make();
  const auto file = ParseLlama2c(bytes);
  return file ? "accepted" : file.error().message();
}

float FirstOf(const TensorRecord* tensor) {
  float value = -1;
  if (tensor) std::memcpy(&value, tensor->bytes.data(), 4);
  return value;
}

TEST(Llama2c, Legacy) {
  Model model;
  std::string bytes = model.Make();
  auto file = ParseLlama2c(bytes);
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->config().hidden, 8);
  EXPECT_EQ(file->config().kv_dim(), 4);
  EXPECT_TRUE(file->config().tied_embeddings);
  EXPECT_EQ(file->Find("lm_head.weight"), nullptr);
  EXPECT_EQ(FirstOf(file->Find("model.embed_tokens.weight")), 0);
  EXPECT_EQ(FirstOf(file->Find("model.layers.0.input_layernorm.weight")), 80);  // after the embedding
  EXPECT_EQ(FirstOf(file->Find("model.layers.1.input_layernorm.weight")), 88);
  EXPECT_EQ(FirstOf(file->Find("model.layers.0.self_attn.q_proj.weight")), 96);
  EXPECT_EQ(FirstOf(file->Find("model.layers.1.self_attn.k_proj.weight")), 96 + 128 + 32);
  EXPECT_EQ(file->Find("model.layers.1.self_attn.k_proj.weight")->shape, (Shape{4, 8}));
  EXPECT_EQ(file->Find("model.layers.1.mlp.down_proj.weight")->shape, (Shape{8, 16}));
  EXPECT_EQ(file->tensors().size(), 2u + 2 * 9);

  model.shared = false;
  model.header[5] = -10;
  bytes = model.Make();
  file = ParseLlama2c(bytes);
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_FALSE(file->config().tied_embeddings);
  EXPECT_EQ(file->config().vocab, 10);
  // The classifier is the last thing, behind the rope tables.
  EXPECT_EQ(FirstOf(file->Find("lm_head.weight")), static_cast<float>(model.DataBytes() / 4 - 80));
}

TEST(Llama2c, Version1) {
  Model model;
  model.version = 1;
  const std::string bytes = model.Make();
  const auto file = ParseLlama2c(bytes);
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->config().version, 1);
  EXPECT_EQ(FirstOf(file->Find("model.layers.0.input_layernorm.weight")), 0);
  EXPECT_EQ(FirstOf(file->Find("model.layers.0.post_attention_layernorm.weight")), 16);
  EXPECT_EQ(FirstOf(file->Find("model.norm.weight")), 32);
  EXPECT_EQ(FirstOf(file->Find("model.embed_tokens.weight")), 40);
}

TEST(Llama2c, Version2) {
  Model model;
  model.version = 2;
  model.shared = false;
  model.shared_byte = 0;
  const std::string bytes = model.Make();
  const auto file = ParseLlama2c(bytes);
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->config().group_size, 4);
  const TensorRecord* values = file->Find("model.embed_tokens.weight");
  const TensorRecord* scales = file->Find("model.embed_tokens.weight.scales");
  ASSERT_TRUE(values && scales);
  EXPECT_EQ(values->dtype, DType::kI8);
  EXPECT_EQ(values->shape, (Shape{10, 8}));
  EXPECT_EQ(scales->dtype, DType::kF32);
  EXPECT_EQ(scales->shape, (Shape{10, 2}));
  EXPECT_EQ(values->bytes.data() + 80, scales->bytes.data());  // right behind the values
  EXPECT_EQ(file->Find("model.layers.1.mlp.down_proj.weight.scales")->shape, (Shape{8, 4}));
  EXPECT_TRUE(file->Find("lm_head.weight.scales"));
  EXPECT_EQ(file->Find("model.norm.weight")->dtype, DType::kF32);
}

TEST(Llama2c, TheLengthMustFit) {
  for (const int version : {0, 1, 2}) {
    Model model;
    model.version = version;
    ASSERT_EQ(Llama2cErrorOf(model), "accepted") << version;
    model.tail = "x";
    EXPECT_THAT(Llama2cErrorOf(model), HasSubstr("1 bytes too many")) << version;
    const std::string bytes = Model{.version = version}.Make();
    for (size_t length = 0; length < bytes.size(); ++length)
      ASSERT_FALSE(ParseLlama2c(bytes.substr(0, length))) << length;
  }
}

TEST(Llama2c, LyingHeaders) {
  const char* names[] = {"dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"};
  for (size_t field = 0; field < 7; ++field) {
    for (const int32_t value : {0, -1, INT32_MIN, INT32_MAX, 3}) {
      for (const int version : {0, 1, 2}) {
        const std::string good = Model{.version = version}.Make();
        std::string bytes = good;
        std::memcpy(bytes.data() + (version ? 8 : 0) + 4 * field, &value, 4);
        const auto file = ParseLlama2c(bytes);
        if (version != 0 && field == 6 && value > 0) continue;  // the length decides nothing there
        ASSERT_FALSE(file) << names[field] << " " << value << " version " << version;
        if (value == 0) {
          EXPECT_THAT(file.error().message(), HasSubstr(std::string("'") + names[field] + "' is 0"));
        }
      }
    }
  }
}

TEST(Llama2c, LyingFlags) {
  Model model;
  model.version = 2;
  for (const int32_t group : {0, -4, 3, 16, INT32_MIN}) {
    model.group = group;
    EXPECT_THAT(Llama2cErrorOf(model), HasSubstr("'group_size' is " + std::to_string(group)));
  }
  model.group = 4;
  model.shared_byte = 2;
  EXPECT_THAT(Llama2cErrorOf(model), HasSubstr("'shared_classifier' is 2"));
  std::string bytes = Model{.version = 1}.Make();
  bytes[4] = 9;
  EXPECT_THAT(ParseLlama2c(bytes).error().message(), HasSubstr("version 9"));
  // Everything at its largest: sizes that wrap around in 32 and in 64 bits.
  bytes = Raw<uint32_t>(0x616b3432) + Raw<int32_t>(1);
  for (const int32_t field : {INT32_MAX - 1, INT32_MAX, 4096, 1, 1, INT32_MAX, INT32_MAX})
    bytes += Raw(field);
  bytes.resize(300);
  EXPECT_FALSE(ParseLlama2c(bytes));
}

TEST(Llama2c, ReadsStories260K) {
  const std::filesystem::path path = std::string(kSourceDir) + "/../shared/data/stories260K/stories260K.bin";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto file = Llama2cFile::Open(path);
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->config().hidden, 64);
  EXPECT_EQ(file->config().layers, 5);
  EXPECT_EQ(file->config().vocab, 512);
  file->DropPages(file->tensors()[0]);
}

}  // namespace
}  // namespace celer
