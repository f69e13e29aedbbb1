// Folders of every family, with the fused, transposed and stacked matrices that their files have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/source_dir.h"
#include "models/load/open_model.h"
#include "quantize/llm/test_util.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using testing::Quantize;
using testing::RecipeOf;

const fs::path kModels = fs::path(kSourceDir) / "tests/golden/models";

std::vector<std::string> FamilyFolders() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(kModels))
    if (fs::exists(entry.path() / "config.json")) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

// How far rounding moves `value`, one of `n` numbers that share a scale, which is a bf16 number.
float Bound(float value, const float* x, int64_t n, const Target& target) {
  float low = 0, high = 0;
  for (int64_t i = 0; i < n; ++i) low = std::min(low, x[i]), high = std::max(high, x[i]);
  // e4m3: half of the last of four bits, and next to zero of the smallest number, 2^-9 of a scale that makes the greatest
  // number 448.
  if (target.kind == Target::Kind::kFp8)
    return std::fabs(value) / 16 + 1.01f * std::max(-low, high) / 448 / 1024;
  const float levels = std::ldexp(1.0f, target.bits) - 1;
  const float step = target.symmetric ? 2 * std::max(-low, high) / (levels - 1) : (high - low) / levels;
  // Half a step, half of one at an end of the grid, and what bf16 takes off the scale over all levels.
  return step * (1 + levels / 256) * 1.01f;
}

// Rules that keep the matrices whose rows cannot be divided into groups.
std::vector<std::string> Misfits(const TensorSource& source, const Target& target) {
  std::vector<std::string> rules;
  for (const TensorRecord& tensor : source.tensors())
    if (tensor.shape.rank() > 1 && !target.Fits(tensor.shape[tensor.shape.rank() - 1]))
      rules.push_back(tensor.name + "=keep");
  return rules;
}

class QuantizeFamily : public Quantize, public ::testing::WithParamInterface<std::string> {
 protected:
  std::vector<float> Row(const TensorSource& source, const TensorRecord& tensor, int64_t row, int64_t cols) {
    std::vector<float> out(static_cast<size_t>(cols));
    EXPECT_TRUE(ReadRows(source, tensor, row, row + 1, out.data(), pool_));
    return out;
  }

  // All parts are there again: rounded where they are quantized, the same numbers elsewhere. Counts the former.
  int64_t ExpectRounded(const fs::path& from, const fs::path& to, const Target& target) {
    const auto before = OpenModel(from, false), after = OpenModel(to, false);
    EXPECT_TRUE(before && after) << (after ? before : after).error().message();
    if (!before || !after) return 0;
    EXPECT_EQ(before->source->tensors().size(), after->source->tensors().size());
    int64_t rounded = 0;
    for (const TensorRecord& tensor : before->source->tensors()) {
      const TensorRecord* const made = after->source->Find(tensor.name);
      EXPECT_TRUE(made) << tensor.name;
      if (!made) continue;
      EXPECT_EQ(made->shape, tensor.shape) << tensor.name;
      const CodedTensor* const coded = after->source->Coded(tensor.name);
      const bool quantized = coded && !coded->plain;
      rounded += quantized;
      const int64_t cols = tensor.shape[tensor.shape.rank() - 1],
                    group = target.group > 0 ? target.group : cols;
      float worst = 0;
      for (int64_t r = 0; r < *tensor.shape.elements() / cols; ++r) {
        const std::vector<float> x = Row(*before->source, tensor, r, cols),
                                 y = Row(*after->source, *made, r, cols);
        for (int64_t c = 0; c < cols; ++c) {
          const int64_t first = c / group * group;
          const float most =
              quantized ? Bound(x[c], x.data() + first, std::min(group, cols - first), target) : 0;
          worst = std::max(worst, std::fabs(x[c] - y[c]) - most);
        }
      }
      EXPECT_LE(worst, 0) << tensor.name;
    }
    return rounded;
  }
};

TEST_P(QuantizeFamily, FoldersLoadAgain) {
  const fs::path model = kModels / GetParam();
  const DecoderConfig config = LoadDecoderConfig(model).value();
  for (const char* weights : {"fp8", "int8", "int4-g32"}) {
    SCOPED_TRACE(weights);
    const Target target = Target::Parse(weights).value();
    const auto source = OpenForQuantize(model);
    ASSERT_TRUE(source) << source.error().message();
    const auto plan = MakePlan(**source, config.layers, config.tied_embeddings,
                               RecipeOf(weights, Misfits(**source, target)));
    ASSERT_TRUE(plan) << plan.error().message();
    const fs::path out = folder_ / weights;
    const Status written = WriteQuantizedHf(model, *plan, out, {}, pool_);
    ASSERT_TRUE(written) << written.error().message();
    const int64_t rounded = ExpectRounded(model, out, target);
    EXPECT_EQ(rounded > 0, plan->has_ints());
    const auto loaded = Model::Load(out, {.pack = false}, pool_);
    EXPECT_TRUE(loaded) << loaded.error().message();
    if (target.kind == Target::Kind::kFp8) {
      EXPECT_GE(rounded, 4 * config.layers);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Golden, QuantizeFamily, ::testing::ValuesIn(FamilyFolders()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

// Calibration sees the parts of fused matrices, and they are what is written.
TEST_F(Quantize, FusedFamiliesAreCalibrated) {
  for (const char* name : {"phi3", "glm"})
    for (const Method method : {Method::kGptq, Method::kAwq}) {
      SCOPED_TRACE(std::string(name) + " " + Name(method));
      const fs::path path = kModels / name, out = folder_ / (std::string(name) + Name(method));
      const Model model = Load(path);
      const auto source = OpenForQuantize(path, /*every_part=*/true);
      ASSERT_TRUE(source) << source.error().message();
      const auto plan =
          MakePlan(**source, model.config().layers, model.config().tied_embeddings, RecipeOf("fp8"));
      ASSERT_TRUE(plan) << plan.error().message();
      CalibrationText text = Text(4);
      for (int32_t& token : text.tokens) token %= static_cast<int32_t>(model.config().vocab);
      const auto parts = MakeParts(model, /*gguf=*/false, *plan, method, text, pool_, folder_ / "work");
      ASSERT_TRUE(parts) << parts.error().message();
      const Status written =
          WriteQuantizedHf(path, *plan, out, {.parts = &*parts, .every_part = true}, pool_);
      ASSERT_TRUE(written) << written.error().message();
      RemoveWorkFolder(folder_ / "work");
      for (const char* part : {"self_attn.q_proj", "mlp.gate_proj"})
        EXPECT_NE(parts->Blocks("model.layers.0." + std::string(part) + ".weight"), nullptr) << part;
      const Model made = Load(out);
      EXPECT_EQ(made.config().layers, model.config().layers);
    }
}

}  // namespace
}  // namespace celer
