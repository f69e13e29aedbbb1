#include "limits/split.h"

#include <gtest/gtest.h>

#include "limits/model_presets.h"

namespace celer {
namespace {

Machine Of(double memory, double read, std::map<std::string, double> flops = {{"f32", 1e12}}) {
  return {.name = "m",
          .source = "test",
          .memory_bytes = memory,
          .read_bytes_per_s = read,
          .flops = std::move(flops)};
}

TEST(TakingTurns, ReadsByTurns) {
  const MachineShare parts[] = {{Of(1e9, 1000, {{"f32", 100}, {"fp8", 800}}), 0.75},
                                {Of(2e9, 100, {{"f32", 10}, {"int8", 40}}), 0.25}};
  const Machine both = TakingTurns(parts);
  EXPECT_DOUBLE_EQ(both.read_bytes_per_s, 1 / (0.75 / 1000 + 0.25 / 100));
  EXPECT_DOUBLE_EQ(both.memory_bytes, 3e9);
  ASSERT_EQ(both.flops.size(), 1u);
  EXPECT_DOUBLE_EQ(both.flops.at("f32"), 1 / (0.75 / 100 + 0.25 / 10));
  EXPECT_DOUBLE_EQ(TakingTurns({parts, 1}).read_bytes_per_s, 1000);
  EXPECT_DOUBLE_EQ(TakingTurns(parts, 0.5).read_bytes_per_s, 1 / (0.75 / 1000 + 0.25 / 100 + 0.5));
}

TEST(SplitDecode, AllLayersAreThePlainLimit) {
  const LlmShape shape = *FindPlainPreset("llama-3.1-8b");
  const Machine gpu = Of(1e12, 1e12), cpu = Of(1e12, 1e11);
  const LlmSetup setup{.weight_bits = 4.5};
  const auto limit = SplitDecode(shape, gpu, cpu, setup, {.context = 1024});
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->gpu_layers, 32);
  EXPECT_EQ(limit->cpu_bytes, 0);
  EXPECT_NEAR(limit->seconds(), DecodeLimit(shape, gpu, setup, 1024).read_s(), 1e-9);
}

TEST(SplitDecode, EachSideReadsAtItsOwnSpeed) {
  const LlmShape shape = *FindPlainPreset("llama-3.1-8b");
  const LlmSetup setup{.weight_bits = 4.5};
  const Machine gpu = Of(4e9, 1e12), cpu = Of(1e12, 5e10);
  const auto most = SplitDecode(shape, gpu, cpu, setup, {.context = 1024});
  ASSERT_TRUE(most);
  EXPECT_GT(most->gpu_layers, 20);
  EXPECT_LT(most->gpu_layers, 32);
  EXPECT_LE(most->resident, 4e9);
  const auto ten = SplitDecode(shape, gpu, cpu, setup, {.context = 1024, .gpu_layers = 10});
  ASSERT_TRUE(ten);
  const double all = ten->gpu_bytes + ten->cpu_bytes;
  EXPECT_NEAR(all, WeightBytes(shape, setup) + 1024 * KvBytesPerToken(shape, setup), 1);
  EXPECT_DOUBLE_EQ(ten->seconds(), ten->gpu_bytes / 1e12 + ten->cpu_bytes / 5e10 + 10e-6);
  EXPECT_FALSE(SplitDecode(shape, gpu, cpu, setup, {.context = 1024, .gpu_layers = 32}));
  EXPECT_FALSE(SplitDecode(shape, Of(1e8, 1e12), cpu, setup, {.context = 1024}));
}

TEST(SplitDecode, ExpertsOnTheCpu) {
  const LlmShape shape = *FindPlainPreset("qwen3-30b-a3b");
  const LlmSetup setup{.weight_bits = 4.5};
  const Machine gpu = Of(6e9, 1e12), cpu = Of(1e12, 5e10);
  const auto limit = SplitDecode(shape, gpu, cpu, setup, {.context = 4096, .cpu_experts = shape.layers});
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->gpu_layers, shape.layers);
  // 8 of 128 experts of 48 layers, each 3 * 2048 * 768.
  EXPECT_NEAR(limit->cpu_bytes, 48.0 * 8 * 3 * 2048 * 768 * 4.5 / 8, 1);
  EXPECT_LT(limit->gpu_bytes, 2e9);
  EXPECT_DOUBLE_EQ(limit->crossing_s, 48 * 10e-6);
  Machine measured = Of(1e12, 1e12);
  measured.crossing_s = 6e-6;
  EXPECT_DOUBLE_EQ(SplitDecode(shape, measured, cpu, setup, {.context = 4096, .cpu_experts = 10})->crossing_s,
                   10 * 6e-6);
}

}  // namespace
}  // namespace celer
