// The formulas beyond the golden tables: other shapes, experts, batches, widths and machines.
#include <gtest/gtest.h>

#include <cmath>

#include "celer/limits.h"
#include "limits/model_presets.h"

namespace celer {
namespace {

LlmShape Preset(const char* name) {
  return *FindPlainPreset(name);
}

Machine H200() {
  return *FindMachinePreset("h200");
}

LlmShape Tiny() {
  LlmShape s;
  s.name = "tiny";
  s.layers = 2;
  s.hidden = 10;
  s.intermediate = 20;
  s.vocab = 100;
  s.heads = 6;
  s.kv_heads = 2;
  s.head_dim = 7;  // heads * head_dim = 42, not hidden
  return s;
}

TEST(Llm, HeadDimNeedNotBeHiddenOverHeads) {
  LlmShape s = Tiny();
  const int64_t attention = 10 * 42 + 2 * 10 * 14 + 42 * 10;
  EXPECT_EQ(CountParams(s).layers, 2 * (attention + 3 * 10 * 20));
  EXPECT_EQ(KvParamsPerToken(s), 2 * 2 * 14);
  s.qkv_bias = true;
  EXPECT_EQ(CountParams(s).layers, 2 * (attention + 42 + 28 + 3 * 10 * 20));
  EXPECT_EQ(CountParams(s).total, CountParams(s).layers + 2000);
  s.tied_embeddings = true;
  EXPECT_EQ(CountParams(s).total, CountParams(s).layers + 1000);
  EXPECT_EQ(CountParams(s).active, CountParams(s).layers + 1000);
  s.qk_norm = true;
  EXPECT_EQ(CountParams(s).norms, 2 * (20 + 14) + 10);
}

TEST(Llm, ExpertsCountByUse) {
  LlmShape s = Tiny();
  const int64_t dense_attention = CountParams(s).layers - 2 * 3 * 10 * 20;
  s.experts = 8;
  s.experts_per_token = 2;
  s.shared_intermediate = 5;
  const LlmParams p = CountParams(s);
  const int64_t always = dense_attention + 2 * (10 * 8 + 3 * 10 * 5);
  EXPECT_EQ(p.layers, always + 2 * 8 * 600);
  EXPECT_EQ(p.layers_active, always + 2 * 2 * 600);
  EXPECT_EQ(p.active, p.layers_active + 1000);
  EXPECT_EQ(p.resident, p.layers + 1000);
}

TEST(Llm, ExpectedExpertsFollowsTheFormulaAndItsEnds) {
  const LlmShape s = Preset("mixtral-8x7b");
  EXPECT_NEAR(ExpectedExperts(s, 1), 2, 1e-12);
  EXPECT_NEAR(ExpectedExperts(s, 2), 8 * (1 - 0.75 * 0.75), 1e-12);
  EXPECT_NEAR(ExpectedExperts(s, 1e6), 8, 1e-12);
  LlmShape all = s;
  all.experts_per_token = 8;
  EXPECT_EQ(ExpectedExperts(all, 1), 8);
  EXPECT_EQ(ExpectedExperts(Preset("llama-2-7b"), 100), 0);
}

// One decode step of one sequence reads the active weights; a long prefill reads them all.
TEST(Llm, ExpertWeightsReadGrowWithTokens) {
  const LlmShape s = Preset("qwen3-30b-a3b");
  const Machine m = H200();
  const LlmSetup setup;
  const double active_s = 2.0 * CountParams(s).active / m.read_bytes_per_s;
  const double all_s = 2.0 * CountParams(s).resident / m.read_bytes_per_s;
  EXPECT_NEAR(DecodeLimit(s, m, setup, 1).weight_s, active_s, 1e-9 * active_s);
  EXPECT_NEAR(PrefillLimit(s, m, setup, 4096).weight_s, all_s, 1e-6 * all_s);
  LlmSetup many = setup;
  many.batch = 8;
  const double batch_s = DecodeLimit(s, m, many, 1).weight_s;
  EXPECT_GT(batch_s, 3 * active_s);  // 8 sequences touch about 51 of 128 experts
  EXPECT_LT(batch_s, all_s);
}

TEST(Llm, BatchReadsWeightsOnceAndKvPerSequence) {
  const LlmShape s = Preset("llama-3.1-8b");
  const Machine m = H200();
  LlmSetup one, eight;
  eight.batch = 8;
  const PhaseLimit a = DecodeLimit(s, m, one, 2048), b = DecodeLimit(s, m, eight, 2048);
  EXPECT_DOUBLE_EQ(a.weight_s, b.weight_s);
  EXPECT_DOUBLE_EQ(8 * a.kv_s, b.kv_s);
  EXPECT_DOUBLE_EQ(8 * a.compute_s, b.compute_s);
  EXPECT_GT(TokensPerSecond(b, eight), 6 * TokensPerSecond(a, one));
  const DecodeForm form = DecodeWB(s, m, eight);
  EXPECT_NEAR((2048 - 1) / form.w_tokens_per_ms + form.b_ms, 1e3 * b.read_s(), 1e-9);
}

TEST(Llm, FractionalWidths) {
  const LlmShape s = Preset("tinyllama-1.1b");
  LlmSetup q4, f16;
  q4.weight_bits = 4.5;
  q4.kv_bits = 8.5;
  EXPECT_EQ(SetupName(q4), "w4.5kv8.5");
  EXPECT_EQ(SetupName(f16), "w16kv16");
  EXPECT_DOUBLE_EQ(WeightBytes(s, q4) / WeightBytes(s, f16), 4.5 / 16);
  EXPECT_DOUBLE_EQ(KvBytesPerToken(s, q4) / KvBytesPerToken(s, f16), 8.5 / 16);
}

// Each crossing separates the two bottlenecks, on both sides, for dense and expert models and any batch.
TEST(Llm, TurningPointsSeparateTheBottlenecks) {
  int found = 0;
  for (const char* model : {"qwen1.5-7b", "llama-3.1-8b", "qwen3-30b-a3b", "mixtral-8x7b", "smollm2-135m"})
    for (const char* machine : {"rtx4090", "h200", "graviton3-2c", "ryzen-7950x"})
      for (const double bits : {16.0, 4.5})
        for (const int64_t batch : {1, 3})
          for (const KvReads kv : {KvReads::kEveryToken, KvReads::kOnce}) {
            const LlmShape s = Preset(model);
            const Machine m = *FindMachinePreset(machine);
            LlmSetup setup;
            setup.weight_bits = bits;
            setup.batch = batch;
            SCOPED_TRACE(std::string(model) + " " + machine + " " + SetupName(setup));
            const auto points = PrefillTurningPoints(s, m, setup, HeadRows::kExact, kv);
            const auto compute_binds = [&](double n) {
              return PrefillLimit(s, m, setup, static_cast<int64_t>(n), HeadRows::kExact, kv).bound() ==
                     Bound::kCompute;
            };
            if (!points) {
              for (const double n : {1.0, 10.0, 100.0, 1000.0, 1e5}) EXPECT_FALSE(compute_binds(n)) << n;
              continue;
            }
            ++found;
            const double below = std::floor(points->first), above = std::ceil(points->first);
            if (below >= 1) {
              EXPECT_FALSE(compute_binds(below)) << points->first;
            }
            if (above >= 1 && above < points->second) {
              EXPECT_TRUE(compute_binds(above)) << points->first;
            }
            if (std::isinf(points->second)) {
              EXPECT_TRUE(compute_binds(1e7));
            } else {
              if (std::floor(points->second) > points->first) {
                EXPECT_TRUE(compute_binds(std::floor(points->second)));
              }
              EXPECT_FALSE(compute_binds(std::ceil(points->second) + 1)) << points->second;
            }
          }
  EXPECT_GT(found, 60);
}

// Arithmetic so slow that it binds a single token, and so fast that it never binds.
TEST(Llm, TurningPointsAtTheEnds) {
  Machine m = H200();
  m.flops = {{"f16", 1e9}};
  const auto always = PrefillTurningPoints(Preset("llama-3.1-8b"), m, LlmSetup{});
  ASSERT_TRUE(always);
  EXPECT_LT(always->first, 1);
  EXPECT_TRUE(std::isinf(always->second));
  m.flops = {{"f16", 1e20}};
  EXPECT_FALSE(PrefillTurningPoints(Preset("llama-3.1-8b"), m, LlmSetup{}));
  EXPECT_FALSE(PrefillTurningPoints(Preset("mixtral-8x7b"), m, LlmSetup{}));
}

TEST(Llm, DecodeTurningBatchSeparates) {
  const LlmShape s = Preset("llama-3.1-8b");
  const Machine m = H200();
  const auto batch = DecodeTurningBatch(s, m, LlmSetup{}, 1);
  ASSERT_TRUE(batch);
  LlmSetup below, above;
  below.batch = static_cast<int64_t>(*batch);
  above.batch = below.batch + 1;
  EXPECT_NE(DecodeLimit(s, m, below, 1).bound(), Bound::kCompute);
  EXPECT_EQ(DecodeLimit(s, m, above, 1).bound(), Bound::kCompute);
  // At a long context every sequence adds more KV reading than arithmetic.
  EXPECT_FALSE(DecodeTurningBatch(s, m, LlmSetup{}, 100000));
}

TEST(Llm, PeakFollowsWidthAndRequest) {
  Machine m;
  m.flops = {{"f32", 10}, {"bf16", 40}, {"int8", 80}};
  LlmSetup setup;
  EXPECT_EQ(PeakFlops(m, setup), 40);
  setup.weight_bits = 4;
  EXPECT_EQ(PeakFlops(m, setup), 40);
  setup.weight_bits = 32;
  EXPECT_EQ(PeakFlops(m, setup), 10);
  setup.compute = "int8";
  EXPECT_EQ(PeakFlops(m, setup), 80);
  setup.compute = "fp8";
  EXPECT_EQ(PeakFlops(m, setup), std::nullopt);
}

TEST(Llm, CapacityWithTheEmbeddingIsSmaller) {
  const LlmShape s = Preset("qwen1.5-7b");
  const Machine m = *FindMachinePreset("rtx4090");
  EXPECT_EQ(KvCapacityTokens(s, m, LlmSetup{}), 22072);
  EXPECT_EQ(KvCapacityTokens(s, m, LlmSetup{}, true), 19698);
  LlmShape tied = s;
  tied.tied_embeddings = true;
  EXPECT_EQ(KvCapacityTokens(tied, m, LlmSetup{}, true), 22072);
}

TEST(Llm, ValidateNamesTheFieldAndTheValue) {
  const struct {
    void (*spoil)(LlmShape&);
    const char* sentence;
  } cases[] = {
      {[](LlmShape& s) { s.layers = 0; }, "model 'tiny': layers is 0, but must be at least 1"},
      {[](LlmShape& s) { s.vocab = -5; }, "model 'tiny': vocab is -5, but must be at least 1"},
      {[](LlmShape& s) { s.kv_heads = 4; }, "model 'tiny': 6 heads cannot be shared evenly by 4 KV heads"},
      {[](LlmShape& s) { s.experts = 4; }, "model 'tiny': experts_per_token is 0, but must be 1 to 4"},
      {[](LlmShape& s) { s.experts_per_token = 4; },
       "model 'tiny': experts_per_token or shared_intermediate is set, but experts is 0"},
      {[](LlmShape& s) { s.experts = -1; }, "model 'tiny': the number of experts cannot be negative"},
      {[](LlmShape& s) { s.hidden = s.vocab = int64_t(1) << 40; },
       "model 'tiny': its shape gives 2.41785e+24 parameters, more than 2^53"},
  };
  for (const auto& c : cases) {
    LlmShape s = Tiny();
    c.spoil(s);
    const auto status = Validate(s);
    ASSERT_FALSE(status) << c.sentence;
    EXPECT_EQ(status.error().message(), c.sentence);
  }
  EXPECT_TRUE(Validate(Tiny()));
  LlmShape huge = Tiny();
  huge.layers = huge.hidden = huge.intermediate = huge.heads = huge.kv_heads = huge.head_dim = INT64_MAX;
  EXPECT_FALSE(Validate(huge));

  Machine m = H200();
  m.read_bytes_per_s = std::nan("");
  EXPECT_FALSE(Validate(m));
  m = H200();
  m.flops["f16"] = 0;
  EXPECT_EQ(Validate(m).error().message(),
            "machine 'h200': f16 peak in FLOP/s is 0, but must be above 0 and finite");
  m.flops.clear();
  EXPECT_FALSE(Validate(m));
}

}  // namespace
}  // namespace celer
