#include "limits/work.h"

#include <gtest/gtest.h>

#include "limits/model_presets.h"

namespace celer {
namespace {

TEST(Work, MatmulCountsEveryOperandOnce) {
  const Work w = MatmulWork({.m = 3, .n = 5, .k = 32, .a_bits = 16, .w_bits = 4.5, .out_bits = 32});
  EXPECT_EQ(w.read_bytes, 3 * 32 * 2 + 5 * 32 * 4.5 / 8);
  EXPECT_EQ(w.write_bytes, 3 * 5 * 4);
  EXPECT_EQ(w.flops, 2 * 3 * 5 * 32);
  const Work biased = MatmulWork({.m = 3, .n = 5, .k = 32, .bias = true});
  EXPECT_EQ(biased.flops, 2 * 3 * 5 * 32 + 15);
}

TEST(Work, CausalAttentionCountsItsTriangle) {
  const AttentionShape shape = {.queries = 4, .context = 10, .heads = 6, .kv_heads = 2, .head_dim = 16};
  double pairs = 0;
  for (int q = 0; q < 4; ++q) pairs += 10 - 4 + q + 1;
  const Work w = AttentionWork(shape);
  EXPECT_EQ(w.flops, pairs * 6 * (4 * 16 + 5) + 4 * 6 * 16);
  EXPECT_EQ(w.read_bytes,
            2 * 10 * 2 * 16 * 2 + 4 * 6 * 16 * 2);  // KV once for the whole group of 3 query heads
  AttentionShape full = shape;
  full.causal = false;
  EXPECT_EQ(AttentionWork(full).flops, 40 * 6 * (4 * 16 + 5) + 4 * 6 * 16);
}

TEST(Work, SmallOperators) {
  EXPECT_EQ(RmsNormWork(2, 8, 16, 16, 32).bytes(), 2 * 8 * 2 * 2 + 8 * 4);
  EXPECT_EQ(LayerNormWork(2, 8, 32, 32, 32).read_bytes, 2 * 8 * 4 + 2 * 8 * 4);
  EXPECT_EQ(EmbeddingWork(3, 8, 16, 32).write_bytes, 3 * 8 * 4);
  EXPECT_EQ(EmbeddingWork(3, 8, 16, 32).flops, 0);
  EXPECT_EQ(RopeWork(2, 3, 4, 16).bytes(), 2 * 3 * 4 * 2 * 2);
  EXPECT_EQ(ElementwiseWork(10, 2, 1, 32, 32).bytes(), 10 * 4 * 3);
  EXPECT_EQ(SoftmaxWork(2, 5, 32, 32).flops, 50);
  EXPECT_EQ(CopyWork(100).bytes(), 200);
  const Work sum = 2 * CopyWork(100) + CopyWork(1);
  EXPECT_EQ(sum.read_bytes, 201);
}

// The operators of a pass add up to what the formulas for the whole model say: weights and KV in bytes
// exactly, arithmetic up to the softmax and the biases.
TEST(Work, PassOperatorsAgreeWithTheWholeModel) {
  Machine unit;  // one byte and one FLOP per second: seconds are counts
  unit.memory_bytes = unit.read_bytes_per_s = 1;
  unit.flops["f16"] = 1;
  for (const char* name :
       {"llama-3.1-8b", "qwen2.5-0.5b", "qwen3-32b", "mixtral-8x7b", "qwen1.5-moe-a2.7b"}) {
    for (const int64_t batch : {1, 5}) {
      const LlmShape shape = *FindPlainPreset(name);
      LlmSetup setup;
      setup.weight_bits = 4.5;
      setup.kv_bits = 8;
      setup.batch = batch;
      Work decode, prefill;
      for (const NamedWork& op : PassOperators(shape, setup, {.tokens = 1, .context = 777, .act_bits = 1e-9}))
        decode = decode + op.work;
      for (const NamedWork& op :
           PassOperators(shape, setup, {.tokens = 123, .context = 123, .act_bits = 1e-9}))
        prefill = prefill + op.work;
      const PhaseLimit d = DecodeLimit(shape, unit, setup, 777);
      const PhaseLimit p = PrefillLimit(shape, unit, setup, 123, HeadRows::kExact, KvReads::kOnce);
      EXPECT_NEAR(decode.read_bytes / d.read_s(), 1, 1e-6) << name;
      EXPECT_NEAR(prefill.read_bytes / p.read_s(), 1, 1e-6) << name;
      EXPECT_NEAR(decode.flops / d.compute_s, 1, 0.02) << name;
      EXPECT_NEAR(prefill.flops / p.compute_s, 1, 0.02) << name;
    }
  }
}

}  // namespace
}  // namespace celer
