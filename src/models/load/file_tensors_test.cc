#include "models/load/file_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "base/source_dir.h"
#include "io/gguf/gguf.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"
#include "models/config/family.h"
#include "models/load/model.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(kSourceDir) / "tests/golden";

using Listed = std::map<std::string, std::string>;  // shapes by name

Listed ListOf(const std::vector<FileTensor>& tensors) {
  Listed out;
  for (const FileTensor& tensor : tensors) {
    EXPECT_TRUE(out.emplace(tensor.name, tensor.shape.ToString()).second) << tensor.name << " twice";
    int64_t elements = 0;
    for (const ModelPart& part : tensor.parts) elements += *part.shape.elements();
    EXPECT_EQ(elements, *tensor.shape.elements()) << tensor.name;
  }
  return out;
}

Listed ListOf(const std::vector<TensorRecord>& tensors, bool gguf = false) {
  Listed out;
  for (const TensorRecord& tensor : tensors) {
    const Shape& shape = tensor.shape;
    // As converters to GGUF write one row.
    const bool row = gguf && shape.rank() == 2 && shape[0] == 1;
    out[tensor.name] = row ? Shape{shape[1]}.ToString() : shape.ToString();
  }
  return out;
}

// Both ways, so that a failure names all that differ.
void ExpectSame(const Listed& file, const Listed& listed) {
  for (const auto& [name, shape] : file) {
    const auto found = listed.find(name);
    if (found == listed.end())
      ADD_FAILURE() << name << " " << shape << " is in the file alone";
    else
      EXPECT_EQ(found->second, shape) << name;
  }
  for (const auto& [name, shape] : listed)
    EXPECT_TRUE(file.contains(name)) << name << " " << shape << " is in the list alone";
}

// What transformers saves of a model is what its configuration says.
TEST(FileTensors, AreThoseOfEveryGoldenFolder) {
  std::set<std::string> families;
  for (const auto& entry : fs::directory_iterator(kGolden / "models")) {
    SCOPED_TRACE(entry.path().filename());
    const auto config = LoadDecoderConfig(entry.path());
    ASSERT_TRUE(config) << config.error().message();
    const auto file = SafetensorsModel::Open(entry.path());
    ASSERT_TRUE(file) << file.error().message();
    const auto listed = FileTensors(*config, ModelContainer::kHf);
    ASSERT_TRUE(listed) << listed.error().message();
    Listed in_file = ListOf(file->tensors());
    // Keys and values that layers with those of another one do not need.
    for (int64_t i = 0; i < config->layers; ++i)
      if (config->KvFrom(i) != i)
        for (const char* name : {"k_proj.weight", "v_proj.weight", "k_norm.weight"})
          in_file.erase("model.layers." + std::to_string(i) + ".self_attn." + name);
    ExpectSame(in_file, ListOf(*listed));
    families.insert(config->family);
  }
  for (const Family& family : Families()) EXPECT_TRUE(families.contains(family.name)) << family.name;
}

TEST(FileTensors, AreThoseOfEveryGoldenGguf) {
  int64_t files = 0;
  for (const auto& entry : fs::directory_iterator(kGolden / "gguf")) {
    if (entry.path().extension() != ".gguf") continue;
    SCOPED_TRACE(entry.path().filename());
    auto config = LoadDecoderConfig(entry.path());
    ASSERT_TRUE(config) << config.error().message();
    const auto file = GgufFile::Open(entry.path());
    ASSERT_TRUE(file) << file.error().message();
    if (file->Find("rope_freqs.weight")) config->rope.scaling = RopeConfig::Scaling::kLlama3;
    const auto listed = FileTensors(*config, ModelContainer::kGguf);
    ASSERT_TRUE(listed) << listed.error().message();
    ExpectSame(ListOf(file->tensors(), true), ListOf(*listed));
    ++files;
  }
  EXPECT_GE(files, 10);
}

// The same parts under the same keys, whichever container holds them.
TEST(FileTensors, BothContainersHaveTheSameParts) {
  for (const auto& entry : fs::directory_iterator(kGolden / "models")) {
    SCOPED_TRACE(entry.path().filename());
    const auto config = LoadDecoderConfig(entry.path());
    ASSERT_TRUE(config) << config.error().message();
    const auto gguf = FileTensors(*config, ModelContainer::kGguf);
    if (!GgufFamily(*FindFamily(config->family))) {
      EXPECT_FALSE(gguf);
      continue;
    }
    ASSERT_TRUE(gguf) << gguf.error().message();
    std::map<std::string, int64_t> elements;  // by key
    const auto hf = FileTensors(*config, ModelContainer::kHf);
    ASSERT_TRUE(hf) << hf.error().message();
    for (const FileTensor& tensor : *hf)
      for (const ModelPart& part : tensor.parts) elements[part.key] += *part.shape.elements();
    for (const FileTensor& tensor : *gguf)
      for (const ModelPart& part : tensor.parts) {
        if (part.key.starts_with("rope_")) continue;
        if (part.key.find('#') == std::string::npos) {
          elements[part.key] -= *part.shape.elements();
          continue;
        }
        const size_t at = part.key.find('#');
        const int64_t each = *part.shape.elements() / part.shape[0];
        for (int64_t e = 0; e < part.shape[0]; ++e)
          elements[part.key.substr(0, at) + std::to_string(e) + part.key.substr(at + 1)] -= each;
      }
    for (const auto& [key, left] : elements) EXPECT_EQ(left, 0) << key;
    ListOf(*gguf);  // no name twice, all elements in parts
  }
}

TEST(FileTensors, SayWhatIsInATensor) {
  const auto config = LoadDecoderConfig(kGolden / "models/granitemoehybrid");
  ASSERT_TRUE(config) << config.error().message();
  const auto tensors = FileTensors(*config, ModelContainer::kHf);
  ASSERT_TRUE(tensors) << tensors.error().message();
  const auto find = [&](const std::string& name) {
    const auto found = std::ranges::find(*tensors, name, &FileTensor::name);
    return found == tensors->end() ? FileTensor{} : *found;
  };
  const FileTensor stack = find("model.layers.0.block_sparse_moe.input_linear.weight");
  EXPECT_EQ(stack.stacked, config->moe.experts);
  ASSERT_EQ(std::ssize(stack.parts), 2 * config->moe.experts);
  EXPECT_EQ(stack.parts[1].key, "model.layers.0.block_sparse_moe.experts.0.up.weight");
  EXPECT_EQ(stack.role, WeightRole::kProjection);
  EXPECT_EQ(find("model.layers.0.mamba.in_proj.weight").parts.size(), 3u);
  EXPECT_EQ(find("model.layers.0.mamba.A_log").role, WeightRole::kVector);
  EXPECT_EQ(find("model.layers.0.block_sparse_moe.router.layer.weight").role, WeightRole::kRouter);
}

}  // namespace
}  // namespace celer
