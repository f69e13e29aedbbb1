#include <gtest/gtest.h>

#include <set>

#include "celer/limits.h"
#include "limits/model_presets.h"

namespace celer {
namespace {

// Parameters in the published checkpoints (all tensors, tied tables once), which the shape alone must give.
TEST(ModelPresets, GiveThePublishedParameterCount) {
  const std::pair<const char*, int64_t> published[] = {
      {"llama-2-7b", 6738415616},   {"llama-2-13b", 13015864320},   {"llama-2-70b", 68976648192},
      {"llama-3.1-8b", 8030261248}, {"llama-3.1-70b", 70553706496}, {"llama-3.1-405b", 405853388800},
      {"llama-3.2-1b", 1235814400}, {"llama-3.2-3b", 3212749824},   {"tinyllama-1.1b", 1100048384},
      {"smollm2-135m", 134515008},  {"smollm2-360m", 361821120},    {"smollm2-1.7b", 1711376384},
      {"qwen2.5-0.5b", 494032768},  {"qwen2.5-1.5b", 1543714304},   {"qwen2.5-3b", 3085938688},
      {"qwen2.5-7b", 7615616512},   {"qwen2.5-14b", 14770033664},   {"qwen2.5-32b", 32763876352},
      {"qwen2.5-72b", 72706203648}, {"qwen3-0.6b", 596049920},      {"qwen3-1.7b", 1720574976},
      {"qwen3-4b", 4022468096},     {"qwen3-8b", 8190735360},       {"qwen3-14b", 14768307200},
      {"qwen3-32b", 32762123264},   {"qwen3-30b-a3b", 30532122624}, {"qwen3-235b-a22b", 235093634560},
      {"mistral-7b", 7241732096},   {"mixtral-8x7b", 46702792704},  {"mixtral-8x22b", 140620634112},
      {"qwen1.5-7b", 7721324544},   {"qwen1.5-32b", 32512218112},   {"qwen1.5-110b", 111209914368},
  };
  for (const auto& [name, count] : published) {
    const auto shape = FindPlainPreset(name);
    ASSERT_TRUE(shape) << name;
    const LlmParams p = CountParams(*shape);
    EXPECT_EQ(p.total + p.norms, count) << name;
  }
}

TEST(ModelPresets, AreValidAndNamedOnce) {
  std::set<std::string> seen;
  for (const std::string& name : PlainPresetNames()) {
    EXPECT_TRUE(seen.insert(name).second) << name;
    const auto shape = FindPlainPreset(name);
    ASSERT_TRUE(shape) << name;
    EXPECT_EQ(shape->name, name);
    EXPECT_TRUE(Validate(*shape)) << name;
    for (const char c : name) EXPECT_FALSE(c >= 'A' && c <= 'Z') << name;
  }
  EXPECT_GE(seen.size(), 40u);
}

TEST(ModelPresets, ActiveParametersOfExpertModels) {
  EXPECT_NEAR(CountParams(*FindPlainPreset("mixtral-8x7b")).active / 1e9, 12.8, 0.1);
  EXPECT_NEAR(CountParams(*FindPlainPreset("qwen3-30b-a3b")).active / 1e9, 3.0, 0.1);
  EXPECT_NEAR(CountParams(*FindPlainPreset("qwen3-235b-a22b")).active / 1e9, 21.5, 0.5);
  EXPECT_NEAR(CountParams(*FindPlainPreset("qwen1.5-moe-a2.7b")).active / 1e9, 2.4, 0.1);
}

TEST(MachinePresets, AreValidAndNamedOnce) {
  std::set<std::string> seen;
  for (const std::string& name : MachinePresetNames()) {
    EXPECT_TRUE(seen.insert(name).second) << name;
    const auto machine = FindMachinePreset(name);
    ASSERT_TRUE(machine) << name;
    EXPECT_TRUE(Validate(*machine)) << name;
    EXPECT_TRUE(PeakFlops(*machine, LlmSetup{}).has_value()) << name;
    EXPECT_FALSE(machine->source.empty());
    // Bytes and flops in each other's columns would show here: every real machine lies between these.
    const double ridge = *PeakFlops(*machine, LlmSetup{}) / machine->read_bytes_per_s;
    EXPECT_GT(ridge, 5) << name;
    EXPECT_LT(ridge, 1000) << name;
  }
  EXPECT_GE(seen.size(), 16u);
}

TEST(MachinePresets, KnownFigures) {
  const auto card = FindMachinePreset("rtx4090");
  ASSERT_TRUE(card);
  EXPECT_EQ(card->memory_bytes, 24.0 * 1073741824.0);
  EXPECT_EQ(card->read_bytes_per_s, 1008e9);
  EXPECT_EQ(card->flops.at("f16"), 82.58e12);
  const Machine binary = InUnits(*card, Units::kBinary);
  EXPECT_DOUBLE_EQ(binary.read_bytes_per_s, 1008 * 1073741824.0);
  EXPECT_DOUBLE_EQ(binary.flops.at("f16"), 82.58 * 1099511627776.0);
  EXPECT_EQ(binary.memory_bytes, card->memory_bytes);
}

TEST(MachinePresets, UnknownNameSuggestsTheNearest) {
  const auto wrong = FindMachinePreset("rtx409");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), Error::Code::kNotFound);
  EXPECT_EQ(wrong.error().message(), "unknown machine 'rtx409'; did you mean 'rtx4090'?");
}

}  // namespace
}  // namespace celer
