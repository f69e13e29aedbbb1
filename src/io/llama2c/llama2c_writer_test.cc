#include "io/llama2c/llama2c_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "io/file/test_folder.h"

namespace celer {
namespace {

Llama2cFile::Config Shape(int version, bool tied) {
  Llama2cFile::Config config;
  config.hidden = 16;
  config.intermediate = 32;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  config.vocab = 10;
  config.max_positions = 6;
  config.tied_embeddings = tied;
  config.version = version;
  config.group_size = version == 2 ? static_cast<int>(Llama2cGroup(config)) : 0;
  return config;
}

// Of a tensor by its name: another sequence for each.
float ValueOf(const std::string& name, size_t i) {
  return std::sin(static_cast<float>(name.size() + 31 * static_cast<size_t>(name.back()) + 7 * i));
}

TEST(Llama2cWriter, ReadsBackAsItWas) {
  const TestFolder folder;
  for (const int version : {0, 1, 2})
    for (const bool tied : {true, false}) {
      SCOPED_TRACE(std::to_string(version) + (tied ? " tied" : ""));
      const Llama2cFile::Config config = Shape(version, tied);
      const auto path = folder / "m.bin";
      int64_t last = 0;
      const auto fill = [](const std::string& name, int64_t, int64_t, std::vector<float>* values) -> Status {
        for (size_t i = 0; i < values->size(); ++i) (*values)[i] = ValueOf(name, i);
        return {};
      };
      const auto written = WriteLlama2c(path, config, fill, [&](int64_t done) -> Status {
        EXPECT_GT(done, last);
        last = done;
        return {};
      });
      ASSERT_TRUE(written) << written.error().message();
      EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path)), Llama2cBytes(config));
      EXPECT_EQ(last, Llama2cBytes(config));
      const auto file = Llama2cFile::Open(path);
      ASSERT_TRUE(file) << file.error().message();
      EXPECT_EQ(file->config().tied_embeddings, tied);
      EXPECT_EQ(file->config().kv_heads, 2);
      EXPECT_EQ(file->config().group_size, config.group_size);
      for (const TensorRecord& tensor : file->tensors()) {
        if (tensor.name.ends_with(".scales")) continue;
        const auto count = static_cast<size_t>(*tensor.shape.elements());
        const TensorRecord* const scales = file->Find(tensor.name + ".scales");
        EXPECT_EQ(scales != nullptr, tensor.dtype == DType::kI8);
        for (size_t i = 0; i < count; ++i) {
          float value = 0, scale = 0;
          if (scales) {
            std::memcpy(&scale, scales->bytes.data() + i / static_cast<size_t>(config.group_size) * 4, 4);
            value = static_cast<float>(static_cast<int8_t>(tensor.bytes[i])) * scale;
          } else {
            std::memcpy(&value, tensor.bytes.data() + i * 4, 4);
          }
          ASSERT_NEAR(value, ValueOf(tensor.name, i), scale / 2 * 1.001f) << tensor.name << " " << i;
        }
      }
    }
}

TEST(Llama2cWriter, GroupsDivideRows) {
  ModelShape shape;
  shape.hidden = 4096, shape.intermediate = 11008;
  EXPECT_EQ(Llama2cGroup(shape), 64);
  shape.hidden = 288, shape.intermediate = 768;
  EXPECT_EQ(Llama2cGroup(shape), 32);
}

TEST(Llama2cWriter, AnErrorLeavesNothing) {
  const TestFolder folder;
  const auto fail = [](const std::string&, int64_t, int64_t, std::vector<float>*) -> Status {
    return Error::Cancelled("enough");
  };
  EXPECT_FALSE(WriteLlama2c(folder / "m.bin", Shape(1, true), fail));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace celer
