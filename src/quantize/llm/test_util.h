// Small models for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "formats/decode.h"
#include "io/file/test_folder.h"
#include "models/synth/synth.h"
#include "quantize/llm/quantize.h"

namespace celer::testing {

// Two small layers with grouped queries; rows of 64 and 128 columns.
inline LlmShape SmallShape(const std::string& preset = "llama-3.2-1b") {
  LlmShape shape = FindModelPreset(preset).value();
  shape.layers = 2;
  shape.hidden = 64;
  shape.intermediate = 128;
  shape.vocab = 300;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 16;
  return shape;
}

class Quantize : public ::testing::Test {
 protected:
  std::filesystem::path Gguf(DType dtype = DType::kF32, const std::string& preset = "llama-3.2-1b") {
    const auto model = MakeSynthModel(SmallShape(preset), dtype, 7);
    EXPECT_TRUE(model) << model.error().message();
    const std::filesystem::path path = folder_ / "model.gguf";
    const Status status = WriteSynthGguf(*model, path, pool_);
    EXPECT_TRUE(status) << status.error().message();
    return path;
  }
  std::filesystem::path Folder() {
    const auto model = MakeSynthModel(SmallShape(), DType::kF32, 7);
    const std::filesystem::path path = folder_ / "hf";
    const Status status = WriteSynthHf(*model, path, pool_);
    EXPECT_TRUE(status) << status.error().message();
    return path;
  }
  Model Load(const std::filesystem::path& path) {
    auto model = Model::Load(path, {.pack = false}, pool_);
    EXPECT_TRUE(model) << model.error().message();
    return std::move(*model);
  }
  CalibrationText Text(int64_t windows = 4) {
    CalibrationText text{{}, 32};
    std::mt19937 random(3);
    for (int64_t i = 0; i < windows * text.window; ++i)
      text.tokens.push_back(static_cast<int32_t>(random() % 300));
    return text;
  }

  TestFolder folder_;
  ThreadPool pool_{{.threads = 2}};
};

// All that calibration made, for comparing; empty after a failure, which is reported.
inline LayerParts LoadAll(const Result<QuantizedParts>& parts, const QuantizePlan& plan) {
  if (!parts) {
    ADD_FAILURE() << parts.error().message();
    return {};
  }
  auto all = parts->LoadAll(plan);
  EXPECT_TRUE(all) << all.error().message();
  return all ? *std::move(all) : LayerParts();
}

inline Recipe RecipeOf(const std::string& weights, std::vector<std::string> rules = {}) {
  Recipe recipe;
  recipe.weights = weights;
  for (const std::string& rule : rules) EXPECT_TRUE(recipe.AddRule(rule));
  return recipe;
}

inline std::vector<float> ValuesOf(const TensorRecord& record) {
  std::vector<float> out(static_cast<size_t>(*record.shape.elements()));
  DecodeRow(record.dtype, record.bytes.data(), static_cast<int64_t>(out.size()), out.data());
  return out;
}

inline double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, power = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    power += a[i] * a[i];
  }
  return std::sqrt(error / power);
}

}  // namespace celer::testing
