// Calibration on a GPU against the CPU's, over the tiny models of every family.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/device.h"
#include "base/source_dir.h"
#include "io/safetensors/safetensors.h"
#include "kernels/shared/test_util.h"
#include "models/config/plain_layers.h"
#include "quantize/llm/layer/layer_worker.h"
#include "quantize/llm/test_util.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using testing::LoadAll;
using testing::Quantize;
using testing::RecipeOf;

std::vector<fs::path> DenseModels() {
  const fs::path golden = fs::path(kSourceDir) / "tests/golden";
  std::vector<fs::path> out;
  const auto add = [&](const fs::path& path) {
    const auto config = LoadDecoderConfig(path);
    if (config && config->moe.experts == 0 && !BeyondPlainLayers(*config)) out.push_back(path);
  };
  for (const auto& entry : fs::directory_iterator(golden / "models")) add(entry.path());
  for (const auto& entry : fs::directory_iterator(golden / "gguf"))
    if (entry.path().extension() == ".gguf") add(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

CalibrationText TextFor(const Model& model, int64_t windows, int64_t window) {
  CalibrationText text{{}, window};
  std::mt19937 random(3);
  for (int64_t i = 0; i < windows * window; ++i)
    text.tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(model.config().vocab)));
  return text;
}

// The sums over an input, relative to the columns' sizes.
double MaxGramError(const InputStatistics& got, const InputStatistics& expected) {
  const int64_t n = expected.cols();
  double worst = 0;
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = r; c < n; ++c) {
      const auto at = [&](const InputStatistics& s, int64_t i, int64_t j) {
        return double{s.gram()[i * n + j]};
      };
      const double size = std::sqrt(at(expected, r, r) * at(expected, c, c)) + 1e-20;
      const double off = std::abs(at(got, r, c) - at(expected, r, c)) / size;
      worst = std::isfinite(off) ? std::max(worst, off) : HUGE_VAL;
    }
  return worst;
}

TEST_F(Quantize, CudaLayersSeeWhatTheCpuSees) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  const auto models = DenseModels();
  ASSERT_GE(models.size(), 5u);
  for (const fs::path& path : models) {
    SCOPED_TRACE(path.string());
    const Model model = Load(path);
    const CalibrationText text = TextFor(model, 3, 41);
    const auto cpu = MakeLayerWorker(Device::Cpu(), model, text, pool_);
    const auto gpu = MakeLayerWorker(Device::Cuda(0), model, text, pool_);
    ASSERT_TRUE(cpu) << cpu.error().message();
    ASSERT_TRUE(gpu) << gpu.error().message();
    for (int64_t i = 0; i < model.config().layers; ++i) {
      LayerFloats layer = LayerFloats::Of(model, i, pool_);
      for (const auto* worker : {&*cpu, &*gpu}) {
        ASSERT_TRUE((*worker)->Load(&layer, i));
        const Status looked = (*worker)->Observe(nullptr);
        ASSERT_TRUE(looked) << looked.error().message();
      }
      for (int input = 0; input < kLayerInputs; ++input) {
        const auto one = (*cpu)->MeanSquares(static_cast<LayerInput>(input)),
                   other = (*gpu)->MeanSquares(static_cast<LayerInput>(input));
        ASSERT_TRUE(one && other);
        EXPECT_LT(testing::WorstRelative(*other, *one), 1e-3) << "layer " << i << " input " << input;
      }
      const auto a = (*cpu)->Statistics(), b = (*gpu)->Statistics();
      ASSERT_TRUE(a && b);
      for (size_t input = 0; input < kLayerInputs; ++input) {
        EXPECT_EQ((**b)[input].tokens(), (**a)[input].tokens());
        EXPECT_LT(MaxGramError((**b)[input], (**a)[input]), 1e-3) << "layer " << i << " input " << input;
        EXPECT_LT(testing::WorstRelative((**b)[input].MeanMagnitudes(), (**a)[input].MeanMagnitudes()), 1e-3);
      }
      for (const auto* worker : {&*cpu, &*gpu}) {
        const Status advanced = (*worker)->Advance();
        ASSERT_TRUE(advanced) << advanced.error().message();
      }
    }
  }
}

double DifferingCodes(const LayerParts& got, const LayerParts& expected) {
  int64_t differ = 0, all = 0;
  for (const auto& [name, ints] : expected.ints) {
    const IntTensor& other = got.ints.at(name);
    for (int64_t r = 0; r < ints.rows(); ++r)
      for (int64_t c = 0; c < ints.cols(); ++c, ++all) differ += ints.at(r, c) != other.at(r, c);
  }
  return static_cast<double>(differ) / static_cast<double>(all);
}

TEST_F(Quantize, CudaGivesTheCodesOfTheCpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  const fs::path path = Folder();
  const Model model = Load(path);
  const auto source = SafetensorsModel::Open(path);
  const CalibrationText text = this->Text(12);
  const std::tuple<Method, const char*, double> cases[] = {{Method::kGptq, "int4-g32", 0.03},
                                                           {Method::kGptq, "int8", 0.03},
                                                           {Method::kAwq, "int4-g64-sym", 0.03},
                                                           {Method::kAwqGptq, "int4-g64", 0.03}};
  for (const auto& [method, weights, allowed] : cases) {
    SCOPED_TRACE(::testing::Message() << Name(method) << " " << weights);
    // Different formats in one layer: o is kept, and v is rounded to another one.
    const auto plan =
        MakePlan(source->tensors(), 2, true,
                 RecipeOf(weights, {"*v_proj.weight=bf16", "*layers.1*o_proj.weight=int8"}), "model");
    ASSERT_TRUE(plan) << plan.error().message();
    const fs::path work = folder_ / fmt::format("{}-{}", Name(method), weights);
    const LayerParts cpu = LoadAll(MakeParts(model, false, *plan, method, text, pool_, work / "cpu"), *plan);
    const LayerParts gpu = LoadAll(
        MakeParts(model, false, *plan, method, text, pool_, work / "gpu", {}, Device::Cuda(0)), *plan);
    ASSERT_EQ(gpu.ints.size(), cpu.ints.size());
    EXPECT_EQ(gpu.blocks.size(), cpu.blocks.size());
    EXPECT_EQ(gpu.floats.size(), cpu.floats.size());
    EXPECT_LE(DifferingCodes(gpu, cpu), allowed);
  }
}

// A run that was stopped goes on with what it has.
TEST_F(Quantize, CudaGoesOnWhereItWasStopped) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  const fs::path path = Folder(), work = folder_ / "out.work";
  const Model model = Load(path);
  const auto source = SafetensorsModel::Open(path);
  const CalibrationText text = this->Text(4);
  const auto plan = MakePlan(source->tensors(), 2, true, RecipeOf("int4-g64"), "model");
  ASSERT_TRUE(plan);
  const Device gpu = Device::Cuda(0);
  const LayerParts whole = LoadAll(
      MakeParts(model, false, *plan, Method::kGptq, text, pool_, folder_ / "whole.work", {}, gpu), *plan);
  const auto stop = [](int64_t, int64_t) { return Status(Error::Cancelled("stop")); };
  ASSERT_FALSE(MakeParts(model, false, *plan, Method::kGptq, text, pool_, work, stop, gpu));
  const LayerParts rest =
      LoadAll(MakeParts(model, false, *plan, Method::kGptq, text, pool_, work, {}, gpu), *plan);
  ASSERT_EQ(rest.ints.size(), whole.ints.size());
  EXPECT_EQ(DifferingCodes(rest, whole), 0);
}

}  // namespace
}  // namespace celer
