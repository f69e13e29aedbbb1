#include "limits/speculation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "limits/model_presets.h"

namespace celer {
namespace {

using ::testing::HasSubstr;

TEST(DraftAcceptance, CountsTheTokensOfAStep) {
  // 1 + 0.7 + 0.49 + 0.343 + 0.2401
  EXPECT_NEAR((DraftAcceptance{.depth = 4, .acceptance = 0.7}).TokensPerStep(), 2.7731, 1e-12);
  EXPECT_DOUBLE_EQ((DraftAcceptance{.depth = 4, .acceptance = 1}).TokensPerStep(), 5);
  EXPECT_DOUBLE_EQ((DraftAcceptance{.depth = 4, .acceptance = 0}).TokensPerStep(), 1);
  EXPECT_DOUBLE_EQ(DraftAcceptance{}.TokensPerStep(), 1);
}

TEST(DraftAcceptance, ParsesAndRefuses) {
  const auto draft = DraftAcceptance::Parse("5,0.8");
  ASSERT_TRUE(draft) << draft.error().message();
  EXPECT_EQ(*draft, (DraftAcceptance{.depth = 5, .acceptance = 0.8}));
  EXPECT_TRUE(DraftAcceptance::Parse("5,0"));
  EXPECT_TRUE(DraftAcceptance::Parse("5,1"));
  for (const char* text : {"", "5", ",", "0,0.5", "-1,0.5", "65,0.5", "5,1.01", "5,-0.1", "5,nan", "5,0.5,1",
                           "a,b", "1e9,0.5"}) {
    const auto wrong = DraftAcceptance::Parse(text);
    ASSERT_FALSE(wrong) << text;
    EXPECT_THAT(wrong.error().message(), HasSubstr("--speculate")) << text;
  }
}

TEST(VerifyLimit, ReadsOnceAndComputesForEachToken) {
  const LlmShape shape = *FindPlainPreset("qwen1.5-7b");
  const Machine machine = *FindMachinePreset("rtx4090");
  const LlmSetup setup;
  const PhaseLimit one = DecodeLimit(shape, machine, setup, 1024);
  const PhaseLimit five = VerifyLimit(shape, machine, setup, 1024, {.depth = 4, .acceptance = 0.7});
  EXPECT_DOUBLE_EQ(five.weight_s, one.weight_s);
  EXPECT_DOUBLE_EQ(five.kv_s, one.kv_s);
  EXPECT_NEAR(five.compute_s, 5 * one.compute_s, 1e-12);
  EXPECT_DOUBLE_EQ(VerifyLimit(shape, machine, setup, 1024, {}).seconds(), one.seconds());
}

TEST(VerifyLimit, ReadsMoreExpertsForMoreTokens) {
  const LlmShape shape = *FindPlainPreset("mixtral-8x7b");
  const Machine machine = *FindMachinePreset("h200");
  const PhaseLimit one = VerifyLimit(shape, machine, {}, 1024, {});
  const PhaseLimit four = VerifyLimit(shape, machine, {}, 1024, {.depth = 3, .acceptance = 0.5});
  EXPECT_GT(four.weight_s, 1.5 * one.weight_s);
  EXPECT_DOUBLE_EQ(four.kv_s, one.kv_s);
}

TEST(Together, AddsWhatEachDeviceHas) {
  const Machine one = *FindMachinePreset("h200"), eight = Together(one, 8);
  EXPECT_EQ(eight.name, "8 x h200");
  EXPECT_DOUBLE_EQ(eight.memory_bytes, 8 * one.memory_bytes);
  EXPECT_DOUBLE_EQ(eight.read_bytes_per_s, 8 * one.read_bytes_per_s);
  EXPECT_DOUBLE_EQ(eight.flops.at("bf16"), 8 * one.flops.at("bf16"));
  EXPECT_EQ(Together(one, 1).name, "h200");
}

}  // namespace
}  // namespace celer
