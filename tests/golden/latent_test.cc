// Latent attention in the engine: one row is key and value, in every type of keys and values that there is.
// Sequences that are preempted, swapped, forked and found in the prefix cache say bit for bit what they say alone.
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "golden.h"

namespace celer::latent {
namespace {

using Said = std::vector<std::pair<int32_t, float>>;  // tokens and their log probabilities

constexpr const char* kModels[] = {"deepseek_v2", "minicpm3"};

std::unique_ptr<Engine> MustLoad(const char* model, KvType kv, EngineOptions options = {}) {
  options.kv = kv;
  options.model = (kGolden / "models" / model).string();
  options.threads = 2;
  auto engine = Engine::Load(options);
  if (!engine) ADD_FAILURE() << engine.error().message();
  return engine ? std::move(*engine) : nullptr;
}

Request Ask(int seed, int length, int64_t tokens) {
  Request request;
  for (int i = 0; i < length; ++i) request.prompt.push_back((seed * 31 + i * i * 7 + i) % 48);
  request.sampling.temperature = 1.5f;
  request.sampling.seed = static_cast<uint64_t>(seed);
  request.sampling.logprobs = 1;
  request.max_tokens = tokens;
  return request;
}

struct Answers {
  std::map<std::pair<int64_t, int>, Said> said;  // of each request's answers
  int64_t cached = 0;
};
Answers Drain(Engine& engine) {
  Answers out;
  for (int step = 0; engine.HasWork() && step < 10000; ++step)
    for (const TokenEvent& event : engine.Step()) {
      out.said[{event.request, event.answer}].emplace_back(event.token, event.logprob);
      out.cached += event.cached_tokens;
    }
  EXPECT_FALSE(engine.HasWork()) << "stuck";
  return out;
}

class Latent : public ::testing::TestWithParam<KvType> {
 public:
  Said Alone(const char* model, const Request& request) const {
    const auto engine = MustLoad(model, GetParam());
    const auto id = engine->Submit(request);
    EXPECT_TRUE(id) << id.error().message();
    return Drain(*engine).said[{*id, 0}];
  }
};

TEST_P(Latent, PreemptedSwappedAndForkedAnswersAreThoseOfOneAlone) {
  for (const char* model : kModels)
    for (const Preemption preemption : {Preemption::kRecompute, Preemption::kSwap}) {
      SCOPED_TRACE(model);
      // Four blocks of 16 positions for seven answers.
      const auto engine = MustLoad(
          model, GetParam(),
          {.context = 64, .chunk = 9, .kv_host_memory = 1 << 20, .sequences = 1, .preemption = preemption});
      ASSERT_TRUE(engine);
      Request request = Ask(3, 30, 25);
      request.n = 4;
      const Request other = Ask(9, 20, 30);
      const auto id = engine->Submit(request), other_id = engine->Submit(other);
      ASSERT_TRUE(id && other_id);
      const Answers answers = Drain(*engine);
      request.n = 1;
      for (int i = 0; i < 4; ++i, ++request.sampling.seed)
        EXPECT_EQ(answers.said.at({*id, i}), Alone(model, request)) << "answer " << i;
      EXPECT_EQ(answers.said.at({*other_id, 0}), Alone(model, other));
      const EngineStats stats = engine->stats();
      EXPECT_GT(preemption == Preemption::kSwap ? stats.swaps : stats.recomputations, 0);
    }
}

TEST_P(Latent, ACachedPrefixChangesNothing) {
  for (const char* model : kModels) {
    const auto engine = MustLoad(model, GetParam(), {.chunk = 13});
    ASSERT_TRUE(engine);
    const Request request = Ask(5, 40, 12);
    const auto first = engine->Submit(request);
    ASSERT_TRUE(first);
    const Said said = Drain(*engine).said[{*first, 0}];
    const auto second = engine->Submit(request);
    ASSERT_TRUE(second);
    Answers again = Drain(*engine);
    EXPECT_GT(again.cached, 0);
    EXPECT_EQ((again.said[{*second, 0}]), said) << model;
  }
}

// Not int8 by channel: what a token sees of it depends on the rows that were stored with its own.
INSTANTIATE_TEST_SUITE_P(KvTypes, Latent,
                         ::testing::Values(KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8,
                                           KvType::kFp8),
                         [](const auto& test) {
                           std::string name = Name(test.param);
                           std::erase_if(name,
                                         [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

TEST(LatentRefusals, RowsThatFourBitsCannotHold) {
  const auto engine = Engine::Load({.model = (kGolden / "models/deepseek_v2").string(), .kv = KvType::kInt4});
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().message().find("`kv` int4"), std::string::npos) << engine.error().message();
}

// One row instead of keys and values.
TEST(LatentMemory, OneRowIsBoth) {
  const auto engine = MustLoad("deepseek_v2", KvType::kF32, {.context = 64, .sequences = 1});
  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->info().kv_bytes_per_token, 2 * (12 + 4) * 4);
}

}  // namespace
}  // namespace celer::latent
