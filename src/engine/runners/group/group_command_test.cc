#include "engine/runners/group/group_command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace celer {
namespace {

constexpr GroupCommand::Limits kLimits = {.vocab = 100, .kv_blocks = 20, .host_blocks = 4, .context = 64};

StepBatch TestStep() {
  static const std::vector<int32_t> first = {5, 99, 0}, second = {7}, table = {3, 19}, other = {0, 2};
  const Slice slices[] = {
      {.tokens = first, .position = 14, .block_table = table, .rows = Slice::Rows::kAll},
      {.tokens = second, .position = 31, .block_table = other, .rows = Slice::Rows::kNone}};
  return StepBatch(slices);
}

TEST(GroupCommand, StepsArriveAsTheyWere) {
  const StepBatch step = TestStep();
  const auto got = GroupCommand::Decode(EncodeStep(step), kLimits);
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->kind, GroupCommand::Kind::kStep);
  const RaggedBatch a = step.View(), b = got->step.View();
  const auto same = [](std::span<const int32_t> x, std::span<const int32_t> y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
  };
  EXPECT_TRUE(same(a.tokens, b.tokens));
  EXPECT_TRUE(same(a.positions, b.positions));
  EXPECT_TRUE(same(a.seq_start, b.seq_start));
  EXPECT_TRUE(same(a.block_table, b.block_table));
  EXPECT_TRUE(same(a.logit_rows, b.logit_rows));
  EXPECT_TRUE(same(a.prompt_lengths, b.prompt_lengths));
  EXPECT_EQ(a.max_blocks, b.max_blocks);
  using Kind = GroupCommand::Kind;
  for (const Kind kind : {Kind::kDecode, Kind::kDecodeOn}) {
    const auto of_gpus = GroupCommand::Decode(EncodeStep(step, kind), kLimits);
    ASSERT_TRUE(of_gpus) << of_gpus.error().message();
    EXPECT_EQ(of_gpus->kind, kind);
    EXPECT_TRUE(same(of_gpus->step.View().positions, a.positions));
  }
}

TEST(GroupCommand, MicroBatchesArriveAsTheyWere) {
  const std::vector<int32_t> cuts = {1, 3};
  const auto got = GroupCommand::Decode(EncodeStep(TestStep(), GroupCommand::Kind::kStep, cuts), kLimits);
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->cuts, cuts);
  EXPECT_TRUE(GroupCommand::Decode(EncodeStep(TestStep()), kLimits)->cuts.empty());
  for (const std::vector<int32_t>& bad : {std::vector<int32_t>{0}, {4}, {-1}, {2, 2}, {3, 1}})
    EXPECT_FALSE(GroupCommand::Decode(EncodeStep(TestStep(), GroupCommand::Kind::kStep, bad), kLimits));
}

TEST(StepBatch, IsCutInTheMiddleOfSequences) {
  const std::vector<int32_t> cuts = {1, 2};
  const std::vector<StepBatch> parts = TestStep().Cut(cuts);
  ASSERT_EQ(parts.size(), 3U);
  const auto same = [](std::span<const int32_t> got, const std::vector<int32_t>& expected) {
    return std::vector<int32_t>(got.begin(), got.end()) == expected;
  };
  const RaggedBatch first = parts[0].View(), middle = parts[1].View(), last = parts[2].View();
  EXPECT_TRUE(same(first.tokens, {5}) && same(middle.tokens, {99}) && same(last.tokens, {0, 7}));
  EXPECT_TRUE(same(middle.positions, {15}) && same(last.positions, {16, 31}));
  EXPECT_TRUE(same(middle.seq_start, {0, 1}) && same(last.seq_start, {0, 1, 2}));
  EXPECT_TRUE(same(middle.block_table, {3, 19}) && same(last.block_table, {3, 19, 0, 2}));
  EXPECT_TRUE(same(middle.logit_rows, {0}) && same(last.logit_rows, {0}));
  EXPECT_TRUE(same(first.prompt_lengths, {17}) && same(last.prompt_lengths, {17, 32}));
  EXPECT_EQ(middle.max_blocks, 2);
}

TEST(GroupCommand, BlocksArriveAsTheyWere) {
  const GroupCommand swap = {.kind = GroupCommand::Kind::kSwapOut, .copies = {{19, 3}, {0, 0}}};
  const auto got = GroupCommand::Decode(swap.Encode(), kLimits);
  ASSERT_TRUE(got) << got.error().message();
  ASSERT_EQ(got->copies.size(), 2U);
  EXPECT_EQ(got->copies[0].from, 19);
  EXPECT_EQ(got->copies[0].to, 3);
  const GroupCommand clear = {.kind = GroupCommand::Kind::kClear, .blocks = {1, 2}};
  EXPECT_EQ(GroupCommand::Decode(clear.Encode(), kLimits)->blocks, clear.blocks);
  EXPECT_EQ(GroupCommand::Decode(GroupCommand().Encode(), kLimits)->kind, GroupCommand::Kind::kEnd);
}

TEST(GroupCommand, WhatDoesNotFitIsAnError) {
  EXPECT_FALSE(GroupCommand::Decode({}, kLimits));
  const std::vector<std::byte> step = EncodeStep(TestStep());
  for (size_t size = 0; size < step.size(); ++size)
    EXPECT_FALSE(GroupCommand::Decode(std::span(step).first(size), kLimits)) << size;
  std::vector<std::byte> longer = step;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(GroupCommand::Decode(longer, kLimits));
  for (const GroupCommand::Limits& limits :
       {GroupCommand::Limits{99, 20, 4, 64}, {100, 19, 4, 64}, {100, 20, 4, 31}})
    EXPECT_FALSE(GroupCommand::Decode(step, limits));
  using Kind = GroupCommand::Kind;
  for (const GroupCommand& bad : {GroupCommand{.kind = Kind::kSwapOut, .copies = {{0, 4}}},
                                  GroupCommand{.kind = Kind::kSwapIn, .copies = {{4, 0}}},
                                  GroupCommand{.kind = Kind::kCopy, .copies = {{0, 20}}},
                                  GroupCommand{.kind = Kind::kCopy, .copies = {{-1, 0}}},
                                  GroupCommand{.kind = Kind::kClear, .blocks = {20}}})
    EXPECT_FALSE(GroupCommand::Decode(bad.Encode(), kLimits));
  // Any byte that is changed gives an error or a command, and reads nothing beyond.
  for (size_t i = 0; i < step.size(); ++i) {
    std::vector<std::byte> changed = step;
    changed[i] ^= std::byte{0x81};
    const auto got = GroupCommand::Decode(changed, kLimits);
    if (got && got->IsStep()) {
      EXPECT_EQ(got->step.View().tokens.size(), got->step.View().positions.size());
    }
  }
}

}  // namespace
}  // namespace celer
