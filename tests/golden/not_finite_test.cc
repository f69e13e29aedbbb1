// A request whose logits are not finite ends with an error, and no other request notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/device.h"
#include "base/log.h"
#include "celer/engine.h"
#include "overflowing_model.h"

namespace celer {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kBad = OverflowingModel::kToken;

std::unique_ptr<Engine> LoadEngine(EngineOptions options) {
  auto engine = Engine::Load(options);
  if (!engine) ADD_FAILURE() << engine.error().message();
  return engine ? std::move(*engine) : nullptr;
}

// Without the token that overflows.
Request Ask(int seed, int length, float temperature = 0) {
  Request request;
  for (int i = 0; i < length; ++i) request.prompt.push_back((seed * 31 + i * i * 7 + i) % kBad);
  request.sampling.temperature = temperature;
  request.sampling.logit_bias = {{kBad, -1e6f}};
  request.max_tokens = 20;
  return request;
}

struct Outcome {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  std::string error;
  bool operator==(const Outcome&) const = default;
};
std::map<int64_t, Outcome> Outcomes(Engine& engine) {
  std::map<int64_t, Outcome> out;
  for (int step = 0; engine.HasWork() && step < 1000; ++step)
    for (const TokenEvent& event : engine.Step()) {
      Outcome& to = out[event.request];
      EXPECT_EQ(to.finish, FinishReason::kNone) << "an event after the last one";
      to.finish = event.finish;
      to.error = event.error;
      if (event.finish != FinishReason::kError) to.tokens.push_back(event.token);
    }
  EXPECT_FALSE(engine.HasWork()) << "stuck";
  EXPECT_FALSE(engine.fault()) << engine.fault()->message();
  return out;
}

class NotFinite : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (on_gpu() && CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  }
  static bool on_gpu() { return std::string_view(GetParam()) != "cpu"; }
  EngineOptions Options(const char* kv, const char* weights = "stored", const char* launch = "fused") const {
    return {.model = model_.path(),
            .weights = *WeightOptions::Parse(weights),
            .kv = *ParseKvType(kv),
            .device = *DeviceOptions::Parse(GetParam()),
            .launch = *ParseStepLaunch(launch),
            .threads = 1,  // tiny products; two engines would only wait for each other
            .context = 128,
            .chunk = 13,
            .sequences = 4};
  }
  OverflowingModel model_;
};

TEST_P(NotFinite, EndsOneRequestAndNoOther) {
  for (const char* kv : {"f16", "bf16", "int8", on_gpu() ? "fp8" : "f32"})
    for (const char* weights : {"stored", "bf16", "int8", "int8-g32"}) {
      if (std::string_view(kv) != "f16" && std::string_view(weights) != "stored") continue;
      SCOPED_TRACE(std::string(kv) + ", " + weights);
      auto engine = LoadEngine(Options(kv, weights)), alone = LoadEngine(Options(kv, weights));
      std::map<int64_t, Outcome> expected;
      for (int i = 0; i < 4; ++i) {
        Request request = Ask(i, 20 + i, i == 2 ? 1.0f : 0.0f);
        if (i == 1) request.prompt[9] = kBad;  // in the middle of the prompt: what follows attends to it
        const bool bad = i == 1;
        auto id = engine->Submit(request);
        ASSERT_TRUE(id) << id.error().message();
        if (bad) continue;
        auto other = alone->Submit(request);
        ASSERT_TRUE(other);
        expected[*id] = Outcomes(*alone)[*other];
        EXPECT_EQ(expected[*id].tokens.size(), 20u);
      }
      auto got = Outcomes(*engine);
      EXPECT_EQ(got[2].finish, FinishReason::kError);
      EXPECT_TRUE(got[2].tokens.empty());
      EXPECT_THAT(got[2].error, HasSubstr("the model's logits after 21 tokens are not finite"));
      got.erase(2);
      // On a GPU near ties may fall differently in a batch (docs/adr/0005-cuda-decode.md).
      if (on_gpu())
        for (auto& [id, outcome] : got) {
          EXPECT_EQ(outcome.tokens.size(), 20u);
          outcome.tokens = expected[id].tokens;
        }
      EXPECT_EQ(got, expected);
      // Its blocks serve others.
      for (int i = 5; i < 12; ++i) {
        auto id = engine->Submit(Ask(i, 60));
        auto other = alone->Submit(Ask(i, 60));
        ASSERT_TRUE(id);
        ASSERT_TRUE(other);
        EXPECT_EQ(Outcomes(*engine)[*id], Outcomes(*alone)[*other]);
      }
    }
}

TEST_P(NotFinite, WhileDecoding) {
  for (const char* launch : {"eager", "graph", "fused"})
    for (const float temperature : {0.0f, 1.0f}) {
      auto engine = LoadEngine(Options("f16", "stored", launch));
      Request request = Ask(1, 20, temperature), other = Ask(2, 20);
      request.sampling.logit_bias = {
          {kBad, 1e6f}};  // the first token that is chosen is the one that overflows
      auto id = engine->Submit(request), other_id = engine->Submit(other);
      ASSERT_TRUE(id);
      ASSERT_TRUE(other_id);
      auto all = Outcomes(*engine);
      const Outcome got = all[*id];
      EXPECT_EQ(got.finish, FinishReason::kError);
      EXPECT_EQ(got.tokens, std::vector<int32_t>{kBad});
      // Nothing of it is found again, and its blocks are clean.
      const EngineStats stats = engine->stats();
      EXPECT_EQ(stats.kv_blocks_used, 0);
      auto again = engine->Submit(other);
      ASSERT_TRUE(again);
      EXPECT_EQ(Outcomes(*engine)[*again].tokens, all[*other_id].tokens);
      EXPECT_STREQ(Name(got.finish), "error");
      EXPECT_EQ(all[*other_id].finish, FinishReason::kLength);
      EXPECT_EQ(all[*other_id].tokens.size(), 20u);
    }
}

// Without anything to sample a step takes the most likely token in its last kernel.
TEST_P(NotFinite, WithoutSampling) {
  for (const char* launch : {"eager", "graph", "fused"})
    for (const int length : {1, 20}) {
      auto engine = LoadEngine(Options("f16", "bf16", launch));
      Request request = Ask(1, length);
      request.sampling = {};
      request.prompt.back() = kBad;
      auto id = engine->Submit(request);
      ASSERT_TRUE(id);
      EXPECT_EQ(Outcomes(*engine)[*id].finish, FinishReason::kError);
    }
}

TEST_P(NotFinite, VerboseNamesTheLayer) {
  auto engine = LoadEngine(Options("f16"));
  Request request = Ask(1, 40);
  request.prompt[30] = kBad;
  log::SetLevel(log::Level::kInfo);
  auto id = engine->Submit(request);
  ASSERT_TRUE(id);
  const Outcome got = Outcomes(*engine)[*id];
  log::SetLevel(log::Level::kWarning);
  EXPECT_EQ(got.finish, FinishReason::kError);
  EXPECT_THAT(got.error, HasSubstr("the first such values come from layer 0 of 2 at position 30"));
}

TEST_P(NotFinite, ScoreIsAnError) {
  auto engine = LoadEngine(Options("f16")), fresh = LoadEngine(Options("f16"));
  std::vector<int32_t> tokens = Ask(4, 60).prompt;
  const auto good = fresh->Score(tokens, 1);
  ASSERT_TRUE(good);
  std::vector<int32_t> bad_tokens = tokens;
  bad_tokens[20] = kBad;
  for (const int64_t first : {1, 30}) {
    const auto bad = engine->Score(bad_tokens, first);
    ASSERT_FALSE(bad);
    EXPECT_EQ(bad.error().code(), Error::Code::kNotFinite);
    EXPECT_THAT(bad.error().message(), HasSubstr("are not finite"));
    const auto again = engine->Score(tokens, 1);
    ASSERT_TRUE(again);
    EXPECT_EQ(*again, *good);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, NotFinite,
#if CELER_WITH_CUDA
                         ::testing::Values("cpu", "cuda"),
#else
                         ::testing::Values("cpu"),
#endif
                         [](const auto& device) { return std::string(device.param); });

}  // namespace
}  // namespace celer
