// w8a8 with smoothquant, fp8, and runs that go on where they were stopped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>

#include "formats/bfloat16.h"
#include "formats/float8.h"
#include "io/gguf/gguf.h"
#include "io/safetensors/safetensors.h"
#include "quantize/llm/fp8_matrix.h"
#include "quantize/llm/smooth_quant.h"
#include "quantize/llm/test_util.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using testing::LoadAll;
using testing::Quantize;
using testing::RecipeOf;
using testing::RelativeError;
using testing::ValuesOf;

std::string ReadText(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {(std::istreambuf_iterator<char>(in)), {}};
}

TEST(Fp8Matrix, LosesAtMostHalfAStepAndDecodesIntoBf16) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.03f);
  ThreadPool pool({.threads = 2});
  std::vector<float> w(20 * 96), row(96);
  for (float& value : w) value = normal(random);
  std::fill_n(w.begin() + 96, 96, 0.0f);  // a row of zeros
  const Fp8Matrix fp8 = Fp8Matrix::FromBytes(20, 96, Fp8Matrix::Of(w.data(), 20, 96, pool).ToBytes());
  for (int64_t r = 0; r < 20; ++r) {
    fp8.DecodeRow(r, row.data());
    const float scale = Bf16ToFloat(fp8.scales[r]);
    for (int64_t c = 0; c < 96; ++c) {
      const float value = w[r * 96 + c], got = row[c];
      // Three bits behind the leading one; below 2^-6 steps of 2^-9.
      EXPECT_LE(std::fabs(got - value), std::max(std::fabs(value) / 16, scale * 0x1p-10f) * 1.0001f);
      EXPECT_EQ(Bf16ToFloat(FloatToBf16(got)), got);
    }
  }
}

TEST_F(Quantize, FolderOfEightBitsIsReadBackAsItWasRounded) {
  const fs::path model = Folder();
  const auto source = SafetensorsModel::Open(model);
  ASSERT_TRUE(source);
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  for (const auto& [weights, format, dtype] :
       {std::tuple{"w8a8", "int-quantized", DType::kI8}, {"fp8", "float-quantized", DType::kFp8E4M3}}) {
    const auto plan = MakePlan(source->tensors(), 2, true, RecipeOf(weights), "model");
    ASSERT_TRUE(plan) << plan.error().message();
    ASSERT_TRUE(WriteQuantizedHf(model, *plan, folder_ / weights, {}, pool_));
    const std::string exact = std::string(weights) + "-f32";
    ASSERT_TRUE(WriteQuantizedHf(model, *plan, folder_ / exact, {.dequantized = true}, pool_));
    const auto after = SafetensorsModel::Open(folder_ / weights);
    ASSERT_TRUE(after && after->Find(name) && after->Find(name + "_scale"));
    EXPECT_EQ(after->Find(name)->dtype, dtype);
    EXPECT_EQ(after->Find(name + "_scale")->shape, (Shape{64, 1}));
    const std::string config = ReadText(folder_ / weights / "config.json");
    EXPECT_NE(config.find(format), std::string::npos);
    EXPECT_NE(config.find("\"token\""), std::string::npos);

    const Model coded = Load(folder_ / weights), plain = Load(folder_ / exact);
    for (size_t i = 0; i < 2; ++i) {
      const WeightView &a = coded.weights().layers[i].dense.down, &b = plain.weights().layers[i].dense.down;
      std::vector<float> x(static_cast<size_t>(a.cols)), y(x.size());
      for (int64_t r = 0; r < a.rows; ++r) {
        DecodeWeightRow(a, r, x.data());
        DecodeWeightRow(b, r, y.data());
        ASSERT_EQ(x, y) << weights << " row " << r;
      }
    }
    const auto original = SafetensorsModel::Open(folder_ / exact);
    EXPECT_LT(RelativeError(ValuesOf(*source->Find(name)), ValuesOf(*original->Find(name))),
              std::string(weights) == "fp8" ? 0.04 : 0.012);
  }
}

// Some channels of the input are much larger than the others: with scales they hurt the others less.
TEST(SmoothQuant, LowersTheErrorOfRoundedProducts) {
  constexpr int64_t kHidden = 64, kTokens = 200;
  ThreadPool pool({.threads = 2});
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  std::vector<float> x(kTokens * kHidden);
  for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random) * (i % kHidden == 7 ? 60.0f : 1.0f);
  DecoderConfig config;
  config.heads = 4, config.kv_heads = 2, config.head_dim = 16;
  LayerFloats layer;
  for (const Projection p : {Projection::kQ, Projection::kK, Projection::kV}) {
    layer[p].rows = 64, layer[p].cols = kHidden;
    layer[p].values.resize(64 * kHidden);
    for (float& value : layer[p].values) value = normal(random);
  }
  layer.attention_norm.assign(kHidden, 1.0f);
  const LayerFloats before = layer;
  std::array<Target, kProjections> targets;
  for (int p = 0; p < 3; ++p) targets[p] = Target::Parse("w8a8").value();
  LayerStatistics statistics;
  LayerSamples samples;
  statistics[0].Add(x.data(), kTokens, kHidden, pool);
  samples[0].Add(x.data(), kTokens, kHidden, kTokens);
  const auto alphas = FoldSmoothScales(config, targets, samples, &layer, &statistics, pool);
  EXPECT_GT(alphas[0], 0);
  EXPECT_EQ(alphas[1], -1);  // its matrices are kept

  const auto error_of = [&](const LayerFloats& with) {
    const LayerFloats::Matrix &exact = before.matrices[0], &w = with.matrices[0];
    std::vector<float> rounded(w.values.size()), in(kHidden), out(kHidden);
    FakeQuantize(w.values.data(), 64, kHidden, targets[0], nullptr, 0, rounded.data(), pool);
    double sum = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (size_t c = 0; c < kHidden; ++c)
        in[c] = x[static_cast<size_t>(t) * kHidden + c] * with.attention_norm[c];
      FakeQuantizeInput(in.data(), kHidden, out.data());
      for (size_t r = 0; r < 64; ++r) {
        double miss = 0;
        for (size_t c = 0; c < kHidden; ++c)
          miss += exact.values[r * kHidden + c] * x[static_cast<size_t>(t) * kHidden + c] -
                  rounded[r * kHidden + c] * out[c];
        sum += miss * miss;
      }
    }
    return sum;
  };
  EXPECT_LT(error_of(layer), 0.5 * error_of(before));
}

TEST_F(Quantize, AStoppedRunGoesOnAndGivesTheSame) {
  const fs::path path = Folder(), work = folder_ / "out.work";
  const Model model = Load(path);
  const auto source = SafetensorsModel::Open(path);
  const CalibrationText text = this->Text(4);
  const std::tuple<Method, const char*> cases[] = {{Method::kGptq, "int4-g64"},
                                                   {Method::kAwqGptq, "int4-g32"},
                                                   {Method::kAwq, "fp8"},
                                                   {Method::kSmooth, "w8a8"}};
  for (const auto& [method, weights] : cases) {
    const auto plan = MakePlan(source->tensors(), 2, true, RecipeOf(weights), "model");
    ASSERT_TRUE(plan);
    ASSERT_TRUE(CheckMethod(method, *plan));
    const fs::path whole_work = folder_ / (std::string(Name(method)) + "-whole.work");
    const auto whole_parts = MakeParts(model, false, *plan, method, text, pool_, whole_work);
    const LayerParts whole = LoadAll(whole_parts, *plan);
    const auto stopped = MakeParts(model, false, *plan, method, text, pool_, work, [](int64_t done, int64_t) {
      return done == 1 ? Status(Error::Cancelled("stop")) : Status();
    });
    ASSERT_FALSE(stopped);
    EXPECT_TRUE(fs::exists(work));
    // Another text is another run.
    const auto other = MakeParts(model, false, *plan, method, this->Text(3), pool_, work);
    ASSERT_FALSE(other);
    EXPECT_NE(other.error().message().find("out.work"), std::string::npos);
    std::vector<int64_t> seen;
    const auto note = [&](int64_t done, int64_t) {
      seen.push_back(done);
      return Status();
    };
    const LayerParts rest = LoadAll(MakeParts(model, false, *plan, method, text, pool_, work, note), *plan);
    EXPECT_EQ(seen, std::vector<int64_t>{2});  // the first layer was there
    EXPECT_EQ(rest.floats, whole.floats);
    EXPECT_EQ(rest.blocks, whole.blocks);
    ASSERT_EQ(rest.ints.size(), whole.ints.size());
    for (const auto& [name, ints] : whole.ints) {
      EXPECT_EQ(rest.ints.at(name).words(), ints.words()) << Name(method) << " " << name;
      EXPECT_EQ(rest.ints.at(name).scales(), ints.scales()) << Name(method) << " " << name;
      EXPECT_EQ(rest.ints.at(name).zeros(), ints.zeros()) << Name(method) << " " << name;
    }
    // Once more: no layer is left to do.
    seen.clear();
    ASSERT_TRUE(MakeParts(model, false, *plan, method, text, pool_, work, note));
    EXPECT_TRUE(seen.empty());
    RemoveWorkFolder(work);
    EXPECT_FALSE(fs::exists(work));
  }
}

TEST_F(Quantize, GptqOfAGgufRoundsEveryMatrixAndTheHead) {
  const fs::path path = Gguf(), out = folder_ / "out.gguf";
  const Model model = Load(path);
  const auto source = GgufFile::Open(path);
  const auto plan = MakePlan(source->tensors(), 2, true, RecipeOf("q5_1"), "model");
  ASSERT_TRUE(plan) << plan.error().message();
  const auto parts = MakeParts(model, true, *plan, Method::kGptq, this->Text(4), pool_, folder_ / "out.work");
  const LayerParts made = LoadAll(parts, *plan);
  EXPECT_EQ(made.blocks.size(), 15u);  // seven of each layer and the head
  ASSERT_TRUE(WriteQuantizedGguf(path, *plan, out, {.parts = &*parts}, pool_));
  const auto after = GgufFile::Open(out);
  ASSERT_TRUE(after) << after.error().message();
  for (const auto& [name, blocks] : made.blocks) {
    const TensorRecord* tensor = after->Find(name);
    ASSERT_TRUE(tensor) << name;
    EXPECT_TRUE(std::equal(blocks.begin(), blocks.end(), tensor->bytes.begin(), tensor->bytes.end())) << name;
    const double error = RelativeError(ValuesOf(*source->Find(name)), ValuesOf(*tensor));
    EXPECT_GT(error, 0) << name;
    EXPECT_LT(error, 0.1) << name;
  }
}

TEST_F(Quantize, MethodsWithNothingToDoAreRefused) {
  const auto source = SafetensorsModel::Open(Folder());
  const auto kept = MakePlan(source->tensors(), 2, true, RecipeOf("f16"), "model");
  const auto ints = MakePlan(source->tensors(), 2, true, RecipeOf("int4-g32"), "model");
  EXPECT_FALSE(CheckMethod(Method::kGptq, *kept));
  EXPECT_FALSE(CheckMethod(Method::kSmooth, *ints));
  EXPECT_TRUE(CheckMethod(Method::kGptq, *ints));
  for (const auto& [weights, can] : {std::pair{"q5_1", true}, {"iq4_nl", false}}) {
    const auto blocks =
        MakePlan(source->tensors(), 2, true, RecipeOf(weights, {"model.embed_tokens.weight=keep"}), "model");
    EXPECT_EQ(static_cast<bool>(CheckMethod(Method::kGptq, *blocks)), can) << weights;
  }
  EXPECT_TRUE(CheckMethod(Method::kRtn, *kept));
}

}  // namespace
}  // namespace celer
