// Formulas of models whose layers differ, by numbers found by hand.
#include <gtest/gtest.h>

#include "celer/limits.h"
#include "limits/work.h"

namespace celer {
namespace {

const Machine kMachine{
    .name = "m", .source = "flags", .memory_bytes = 1e6, .read_bytes_per_s = 1000, .flops = {{"f32", 1e4}}};
const LlmSetup kSetup{.weight_bits = 32, .kv_bits = 32, .batch = 1, .compute = "f32"};

// Two layers with a window of 4, one that sees all, one with a state.
LlmShape Mixed() {
  LlmShape s{
      {.layers = 4, .hidden = 10, .intermediate = 20, .vocab = 50, .heads = 2, .kv_heads = 1, .head_dim = 5},
      {},
      "mixed"};
  const LayerKind local{.count = 2,
                        .qkv = 100,
                        .o = 50,
                        .up = 30,
                        .down = 20,
                        .query = 10,
                        .kv = 6,
                        .pair_macs = 7,
                        .window = 4};
  LayerKind global = local;
  global.count = 1, global.window = 0;
  const LayerKind recurrent{
      .count = 1, .qkv = 80, .o = 40, .up = 30, .down = 20, .query = 10, .state = 12, .state_macs = 9};
  s.kinds = {local, global, recurrent};
  return s;
}

TEST(KindsOfLayers, AreSummed) {
  const LlmShape s = Mixed();
  ASSERT_TRUE(Validate(s));
  EXPECT_EQ(CountParams(s).layers, 3 * 200 + 170);
  EXPECT_EQ(KvParamsPerToken(s), 18);
  EXPECT_EQ(StateParams(s), 12);
  EXPECT_EQ(StateBytes(s), 48);
  EXPECT_EQ(KvCapacityTokens(s, kMachine, kSetup),
            static_cast<int64_t>((1e6 - 4 * (770 + 500) - 48) / (18 * 4)));
}

TEST(KindsOfLayers, AWindowBoundsWhatIsRead) {
  const LlmShape s = Mixed();
  for (const int64_t context : {1, 4, 9}) {
    const double near = static_cast<double>(std::min<int64_t>(context, 4)),
                 all = static_cast<double>(context);
    const PhaseLimit step = DecodeLimit(s, kMachine, kSetup, context);
    EXPECT_DOUBLE_EQ(step.weight_s, 4 * (770 + 500) / 1000.0);
    EXPECT_DOUBLE_EQ(step.kv_s, (4 * 6 * (2 * near + all) + 2 * 48) / 1000.0);
    EXPECT_DOUBLE_EQ(step.compute_s, 2 * (770 + 500 + 7 * (2 * near + all) + 9) / 1e4);
  }
  // Of nine tokens, the last five see four: 1 + 2 + 3 + 4 + 5 * 4 pairs, and 45 where all is seen.
  const PhaseLimit prompt = PrefillLimit(s, kMachine, kSetup, 9);
  EXPECT_DOUBLE_EQ(prompt.kv_s, (4 * 6 * (2 * 30 + 45) + 2 * 48) / 1000.0);
  EXPECT_DOUBLE_EQ(prompt.compute_s, 2 * (770 * 9 + 500 + 7 * (2 * 30 + 45) + 9 * 9) / 1e4);
}

TEST(KindsOfLayers, OperatorsAddUpToTheLimits) {
  const LlmShape s = Mixed();
  const Pass pass{.tokens = 1, .context = 9, .act_bits = 0};
  Work sum;
  for (const NamedWork& op : PassOperators(s, kSetup, pass)) sum = sum + op.work;
  const PhaseLimit step = DecodeLimit(s, kMachine, kSetup, 9);
  EXPECT_DOUBLE_EQ(sum.flops, step.compute_s * 1e4);
  // All but the new token's keys and values is in both.
  EXPECT_DOUBLE_EQ(sum.bytes() - 4 * 18, step.read_s() * 1000);
}

TEST(KindsOfLayers, TheOnesOfAPlainShape) {
  LlmShape s{
      {.layers = 3, .hidden = 10, .intermediate = 20, .vocab = 50, .heads = 2, .kv_heads = 1, .head_dim = 5},
      {},
      "plain"};
  LlmShape same = s;
  same.kinds = KindsOf(s);
  ASSERT_EQ(same.kinds.size(), 1u);
  EXPECT_EQ(CountParams(s).total, CountParams(same).total);
  EXPECT_EQ(CountParams(s).norms, CountParams(same).norms);
  for (const int64_t context : {1, 100})
    EXPECT_DOUBLE_EQ(DecodeLimit(s, kMachine, kSetup, context).seconds(),
                     DecodeLimit(same, kMachine, kSetup, context).seconds());
  EXPECT_DOUBLE_EQ(DecodeWB(s, kMachine, kSetup).w_tokens_per_ms,
                   DecodeWB(same, kMachine, kSetup).w_tokens_per_ms);
  same.kinds[0].count = 2;
  EXPECT_EQ(Validate(same).error().message(), "model 'plain': 3 layers, and its kinds of layers are 2");
}

}  // namespace
}  // namespace celer
