// What every Runner promises, on tiny models: steps in order, steps queued ahead, blocks copied and swapped.
#include "engine/runners/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/device.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "golden.h"

namespace celer {
namespace {

// One device, or several that share the layers.
using Devices = std::vector<DeviceOptions>;

class RunnerTest : public ::testing::TestWithParam<Devices> {
 protected:
  void SetUp() override {
    const bool cuda = std::count(GetParam().begin(), GetParam().end(), DeviceOptions::Cuda()) > 0;
    if (cuda && CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  }
  static std::unique_ptr<Runner> Make() {
    EngineOptions options = {.model = kGoldenModel, .device = GetParam()[0], .context = 128, .sequences = 4};
    if (GetParam().size() > 1) options.placement.devices = GetParam();
    auto runner = MakeRunner(options, /*kv_host_blocks=*/8);
    if (!runner) ADD_FAILURE() << runner.error().message();
    return runner ? std::move(*runner) : nullptr;
  }
};

std::vector<int32_t> BlocksFrom(int32_t first, size_t count) {
  std::vector<int32_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

// A sequence as the engine would hold it.
struct Text {
  int64_t id;
  std::vector<int32_t> tokens, table;
  Sampler sampler;
  int64_t prompt;

  Text(int64_t id_, std::vector<int32_t> tokens_, std::vector<int32_t> table_,
       const SamplingParams& params = {})
      : id(id_), tokens(std::move(tokens_)), table(std::move(table_)), sampler(params, tokens) {
    prompt = static_cast<int64_t>(tokens.size());
  }
  Slice From(int64_t position) {
    return {.sequence = id,
            .tokens = std::span<const int32_t>(tokens).subspan(static_cast<size_t>(position)),
            .position = position,
            .block_table = table,
            .prompt_length = prompt,
            .sampler = &sampler,
            .history = tokens};
  }
};

// The next `count` tokens, one step after the other.
std::vector<int32_t> Generate(Runner& runner, Text text, int count) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) {
    const Slice slice = text.From(i == 0 ? 0 : static_cast<int64_t>(text.tokens.size()) - 1);
    EXPECT_TRUE(runner.Queue({&slice, 1}));
    const auto output = runner.Take();
    if (!output) {
      ADD_FAILURE() << output.error().message();
      return out;
    }
    out.push_back(output->choices.at(0).token);
    text.tokens.push_back(out.back());
  }
  return out;
}

SamplingParams Warm() {
  SamplingParams params;
  params.temperature = 1.2f;
  params.repetition_penalty = 1.3f;
  params.seed = 5;
  return params;
}

TEST_P(RunnerTest, AStepQueuedAheadGivesTheSameTokens) {
  auto runner = Make();
  ASSERT_TRUE(runner);
  for (const SamplingParams& params : {SamplingParams(), Warm()}) {
    const Text text(1, {3, 5, 7, 11}, BlocksFrom(0, 4), params);
    const std::vector<int32_t> expected = Generate(*runner, text, 12);
    Text ahead(2, {3, 5, 7, 11}, BlocksFrom(8, 4), params);
    constexpr int32_t kUnknown[] = {Slice::kChosenBefore};
    const Slice first = ahead.From(0);
    ASSERT_TRUE(runner->Queue({&first, 1}));
    std::vector<int32_t> got;
    for (int64_t i = 0; i < 12; ++i) {
      Slice next = first;
      next.tokens = kUnknown;
      next.position = 4 + i;
      next.history = ahead.tokens;
      ASSERT_TRUE(runner->Queue({&next, 1}));
      const auto output = runner->Take();
      ASSERT_TRUE(output) << output.error().message();
      got.push_back(output->choices.at(0).token);
      ahead.tokens.push_back(got.back());
    }
    EXPECT_EQ(got, expected);
    runner->DropQueued();
    EXPECT_EQ(Generate(*runner, text, 3), std::vector<int32_t>(expected.begin(), expected.begin() + 3));
  }
}

TEST_P(RunnerTest, LogitsAndChoicesOfOneStepStayApart) {
  auto runner = Make();
  ASSERT_TRUE(runner);
  Text sampled(1, {3, 5, 7, 11}, BlocksFrom(0, 1)), last(2, {2, 4, 6}, BlocksFrom(1, 1)),
      all(3, {9, 8}, BlocksFrom(2, 1)), none(4, {1, 2, 3}, BlocksFrom(3, 1));
  const auto with = [](Text& text, Slice::Rows rows) {
    Slice slice = text.From(0);
    slice.rows = rows;
    if (rows != Slice::Rows::kSample) slice.sampler = nullptr;
    return slice;
  };
  const Slice together[] = {with(last, Slice::Rows::kLast), with(none, Slice::Rows::kNone),
                            with(sampled, Slice::Rows::kSample), with(all, Slice::Rows::kAll)};
  ASSERT_TRUE(runner->Queue(together));
  const auto output = runner->Take();
  ASSERT_TRUE(output) << output.error().message();
  const auto vocab = static_cast<size_t>(runner->info().config.vocab);
  ASSERT_EQ(output->choices.size(), 1u);
  ASSERT_EQ(output->logits.size(), 3 * vocab);
  const std::vector<float> got(output->logits.begin(), output->logits.end());
  EXPECT_EQ(output->choices[0].token, Generate(*runner, Text(5, {3, 5, 7, 11}, BlocksFrom(4, 1)), 1)[0]);
  // As many tokens as before: a GPU takes other kernels, which round differently, for fewer.
  Text filler(6, {1, 2, 3, 4, 5, 6, 7}, BlocksFrom(5, 1));
  const Slice apart[] = {with(last, Slice::Rows::kLast), with(all, Slice::Rows::kAll),
                         with(filler, Slice::Rows::kNone)};
  const auto expected = RunLogits(*runner, apart);
  ASSERT_TRUE(expected);
  ASSERT_EQ(expected->size(), got.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], (*expected)[i], 1e-2) << i;
}

TEST_P(RunnerTest, CopiedAndSwappedBlocksHoldTheSameKeysAndValues) {
  auto runner = Make();
  ASSERT_TRUE(runner);
  ASSERT_GE(runner->info().kv_blocks, 24);
  ASSERT_EQ(runner->info().kv_host_blocks, 8);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back(i * 7 % 48);
  const auto next = [&](std::vector<int32_t> table) {  // the logits after one more token
    constexpr int32_t kToken[] = {5};
    const Slice slice{.tokens = kToken, .position = 40, .block_table = table, .rows = Slice::Rows::kLast};
    auto logits = RunLogits(*runner, {&slice, 1});
    EXPECT_TRUE(logits);
    return logits ? *logits : std::vector<float>();
  };
  const auto table = BlocksFrom(0, 3);
  const Slice prompt{.tokens = tokens, .block_table = table, .rows = Slice::Rows::kNone};
  ASSERT_TRUE(RunLogits(*runner, {&prompt, 1}));
  const auto expected = next(table);

  const BlockCopy copies[] = {{0, 20}, {1, 11}, {2, 17}};
  ASSERT_TRUE(runner->CopyBlocks(copies));
  EXPECT_EQ(next({20, 11, 17}), expected);

  const BlockCopy out[] = {{0, 7}, {1, 0}, {2, 3}}, in[] = {{3, 9}, {7, 8}, {0, 5}};
  ASSERT_TRUE(runner->SwapOut(out));
  ASSERT_TRUE(runner->ClearBlocks(table));
  EXPECT_NE(next(table), expected);
  ASSERT_TRUE(runner->SwapIn(in));
  EXPECT_EQ(next({8, 5, 9}), expected);
}

TEST_P(RunnerTest, BlocksMoveInOrderWithTheSteps) {
  auto runner = Make();
  ASSERT_TRUE(runner);
  const Text text(1, {3, 5, 7, 11}, BlocksFrom(0, 1));
  const std::vector<int32_t> expected = Generate(*runner, text, 2);
  // The copy is asked for while the step that writes the block waits.
  Text first(2, {3, 5, 7, 11}, BlocksFrom(2, 1));
  const Slice prompt = first.From(0);
  ASSERT_TRUE(runner->Queue({&prompt, 1}));
  const BlockCopy copy[] = {{2, 3}};
  ASSERT_TRUE(runner->CopyBlocks(copy));
  auto output = runner->Take();
  ASSERT_TRUE(output);
  ASSERT_EQ(output->choices.at(0).token, expected[0]);
  first.tokens.push_back(expected[0]);
  first.table = {3};
  const Slice second = first.From(4);
  ASSERT_TRUE(runner->Queue({&second, 1}));
  output = runner->Take();
  ASSERT_TRUE(output);
  EXPECT_EQ(output->choices.at(0).token, expected[1]);
}

INSTANTIATE_TEST_SUITE_P(Devices, RunnerTest,
                         ::testing::Values(Devices{DeviceOptions()}, Devices{DeviceOptions::Cuda()},
                                           Devices{DeviceOptions(), DeviceOptions()},
                                           Devices{DeviceOptions(), DeviceOptions::Cuda()},
                                           Devices{DeviceOptions::Cuda(), DeviceOptions::Cuda()},
                                           Devices{DeviceOptions::Cuda(), DeviceOptions()}),
                         [](const auto& devices) {
                           std::string name;
                           for (const DeviceOptions& device : devices.param)
                             name += device == DeviceOptions() ? "Cpu" : "Cuda";
                           return name;
                         });

}  // namespace
}  // namespace celer
