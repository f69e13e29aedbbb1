#include "engine/cost/step_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "limits/roofline.h"

namespace celer {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kKvBytes = 1000;

LlmShape Shape(int64_t experts) {
  return {{.layers = 4,
           .hidden = 64,
           .intermediate = 96,
           .vocab = 300,
           .heads = 4,
           .kv_heads = 2,
           .head_dim = 32},
          {experts, experts > 0 ? 2 : 0, experts > 0 ? 32 : 0},
          "t"};
}

struct Counted {
  DecoderConfig config;
  StepCost::Count count;
};

Counted Count(const LlmShape& shape, int64_t window = 0) {
  DecoderConfig config = FromLlmShape(shape);
  config.sliding_window = window;
  if (window > 0) config.windowed_layer = {true, false, true, true};
  const StepMatrices matrices = MatricesOf(shape, {});
  return {config, [=](const StepShape& s) { return CountStep(config, matrices, kKvBytes, s); }};
}

// Slices that are all alike must cost what the count for one shape says.
TEST(StepCost, AgreesWithTheCountOfOneShape) {
  for (const int64_t experts : {0, 8})
    for (const int64_t window : {0, 20}) {
      const Counted model = Count(Shape(experts), window);
      const StepCost cost(model.config, model.count);
      for (const StepShape& shape :
           {StepShape{1, 1, 0}, {5, 1, 100}, {1, 64, 0}, {3, 7, 16}, {2, 30, 5}, {1, 1, 19}, {1, 1, 20}}) {
        const std::vector<SliceShape> slices(static_cast<size_t>(shape.sequences),
                                             SliceShape{shape.position, shape.tokens, 1});
        // Attention's and the logits' operators stand last here.
        std::map<std::string, OperatorWork> want, got;
        for (const OperatorWork& work : model.count(shape)) want[work.name] = work;
        for (const OperatorWork& work : cost.Work(slices)) got[work.name] = work;
        ASSERT_EQ(got.size(), want.size());
        for (const auto& [name, work] : want) {
          EXPECT_NEAR(got[name].bytes, work.bytes, 1e-9 * work.bytes) << name;
          for (const auto& [type, flops] : work.flops)
            EXPECT_NEAR(got[name].flops[type], flops, 1e-9 * flops) << name << " " << type;
        }
      }
    }
}

TEST(StepCost, MixedStepsReadTheWeightsOnce) {
  const Counted model = Count(Shape(0));
  const StepCost cost(model.config, model.count);
  const std::vector<SliceShape> decode = {{100, 1, 1}}, chunk = {{0, 50, 0}},
                                both = {{100, 1, 1}, {0, 50, 0}};
  const OperatorWork a = Sum(cost.Work(decode)), b = Sum(cost.Work(chunk)), c = Sum(cost.Work(both));
  const StepMatrices matrices = MatricesOf(Shape(0), {});
  EXPECT_NEAR(a.bytes + b.bytes - c.bytes, static_cast<double>(BytesOf(matrices) - matrices.head.bytes),
              1e-6);
  EXPECT_NEAR(a.flops.at("auto") + b.flops.at("auto"), c.flops.at("auto"), 1e-6);
}

TEST(StepCost, DecodeAttentionIsThatOfItsSteps) {
  for (const int64_t window : {0, 20}) {
    const Counted model = Count(Shape(0), window);
    const StepCost cost(model.config, model.count);
    OperatorWork want;
    for (int64_t position = 10; position < 50; ++position) {
      const SliceShape one{.position = position};
      want += cost.Attention({&one, 1});
    }
    const OperatorWork got = cost.DecodeAttention({.position = 10, .tokens = 40});
    EXPECT_NEAR(got.bytes, want.bytes, 1e-9 * want.bytes);
    EXPECT_NEAR(got.flops.at("auto"), want.flops.at("auto"), 1e-9 * want.flops.at("auto"));
  }
}

TEST(StepCost, MatricesOfAShapeHoldItsParameters) {
  for (const char* name : {"llama-3.1-8b", "llama-2-7b", "qwen3-30b-a3b"}) {
    const auto shape = FindModelPreset(name);
    ASSERT_TRUE(shape) << name;
    const auto want = 2 * static_cast<double>(CountParams(*shape).resident);
    EXPECT_NEAR(static_cast<double>(BytesOf(MatricesOf(*shape, {}))), want, 0.001 * want) << name;
    const auto int8 = WeightOptions::Parse("int8");
    EXPECT_NEAR(static_cast<double>(BytesOf(MatricesOf(*shape, *int8))), want / 2, 0.01 * want) << name;
  }
}

Machine TestMachine() {
  return {.name = "m",
          .source = "flags",
          .memory_bytes = 1e9,
          .read_bytes_per_s = 1e9,
          .flops = {{"f32", 1e10}, {"bf16", 4e10}}};
}

TEST(StepTime, IsTheLimitWhereNothingIsLost) {
  const Counted model = Count(Shape(0));
  const Efficiency perfect{.read = 1, .arithmetic = 1, .overlap = 1, .step_s = 0, .row_s = 0};
  const StepTime time(StepCost(model.config, model.count), TestMachine(), perfect);
  const std::vector<SliceShape> slices = {{200, 1, 1}, {0, 64, 1}};
  double want = 0;
  for (const OperatorWork& work : time.cost().Work(slices)) want += LimitOf(work, TestMachine()).seconds();
  EXPECT_NEAR(time.Seconds(slices), want, 1e-12);
  Efficiency slow = perfect;
  slow.step_s = 0.5;
  slow.row_s = 0.25;
  EXPECT_NEAR(StepTime(time.cost(), TestMachine(), slow).Seconds(slices), want + 1, 1e-12);
  slow = perfect;
  slow.read = slow.arithmetic = 0.5;
  EXPECT_NEAR(StepTime(time.cost(), TestMachine(), slow).Seconds(slices), 2 * want, 1e-12);
}

TEST(StepTime, TheFitFindsWhatTheStepsWereMadeWith) {
  const Counted model = Count(Shape(0));
  const StepCost cost(model.config, model.count);
  const Efficiency truth{.read = 0.65, .arithmetic = 0.3, .overlap = 0.8, .step_s = 40e-6, .row_s = 7e-6};
  const StepTime time(cost, TestMachine(), truth);
  std::vector<MeasuredStep> steps;
  for (const int64_t batch : {1, 4, 16})
    for (const int64_t depth : {8, 500})
      steps.push_back({std::vector<SliceShape>(static_cast<size_t>(batch), SliceShape{depth, 1, 1}), 0});
  for (const int64_t prompt : {16, 64, 256}) steps.push_back({{{0, prompt, 1}}, 0});
  for (MeasuredStep& step : steps) step.seconds = time.Seconds(step.slices);
  const StepTime fitted(cost, TestMachine(), FitEfficiency(cost, TestMachine(), steps));
  for (const MeasuredStep& step : steps)
    EXPECT_NEAR(fitted.Seconds(step.slices), step.seconds, 0.02 * step.seconds);
  // Steps that it has not seen.
  const std::vector<SliceShape> mixed = {{300, 1, 1}, {20, 1, 1}, {0, 100, 0}};
  EXPECT_NEAR(fitted.Seconds(mixed), time.Seconds(mixed), 0.05 * time.Seconds(mixed));
}

TEST(Efficiency, IsReadBackAndRefusesNonsense) {
  const auto e = Efficiency::Parse("read=0.5,step=2ms,row=3us");
  ASSERT_TRUE(e);
  EXPECT_EQ(e->read, 0.5);
  EXPECT_EQ(e->arithmetic, Efficiency().arithmetic);
  EXPECT_DOUBLE_EQ(e->step_s, 2e-3);
  EXPECT_DOUBLE_EQ(e->row_s, 3e-6);
  const auto again = Efficiency::Parse(e->ToString());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->ToString(), e->ToString());
  for (const char* text : {"read", "read=0", "read=2", "speed=1", "step=5", "step=11s", "row=-1us",
                           "read=nan", "overlap=0.5x", "=1", "read=0.5;step=1us"}) {
    const auto bad = Efficiency::Parse(text);
    ASSERT_FALSE(bad) << text;
    EXPECT_THAT(bad.error().message(), HasSubstr("as in read=0.8"));
  }
}

}  // namespace
}  // namespace celer
