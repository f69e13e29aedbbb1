// The engine as its users see it, on a tiny model: company, chunks, preemption and kept keys and values
// change nothing about the text.
#include <gtest/gtest.h>

#include <map>

#include "celer/engine.h"

namespace celer {
namespace {

const std::string kModel = std::string(CELER_SOURCE_DIR) + "/tests/golden/models/llama3";

std::unique_ptr<Engine> MustLoad(EngineOptions options = {}) {
  options.model = kModel;
  auto engine = Engine::Load(options);
  if (!engine) ADD_FAILURE() << engine.error().message();
  return engine ? std::move(*engine) : nullptr;
}

std::vector<int32_t> Prompt(int seed, int length) {
  std::vector<int32_t> out;
  for (int i = 0; i < length; ++i) out.push_back((seed * 31 + i * i * 7 + i) % 48);
  return out;
}

Request Ask(std::vector<int32_t> prompt, int64_t max_tokens, const SamplingParams& sampling = {}) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = sampling;
  request.max_tokens = max_tokens;
  return request;
}
Request Keep(Request request) {
  request.keep = true;
  return request;
}
Request Continue(Request request, int64_t from) {
  request.continue_from = from;
  return request;
}

std::map<int64_t, std::vector<int32_t>> Drain(Engine& engine) {
  std::map<int64_t, std::vector<int32_t>> out;
  for (int step = 0; engine.HasWork() && step < 10000; ++step)
    for (const TokenEvent& event : engine.Step())
      if (event.finish != FinishReason::kCancelled) out[event.request].push_back(event.token);
  EXPECT_FALSE(engine.HasWork()) << "stuck";
  return out;
}

std::vector<int32_t> Alone(const std::vector<int32_t>& prompt, int64_t tokens, SamplingParams sampling = {}) {
  auto engine = MustLoad();
  auto id = engine->Submit(Ask(prompt, tokens, sampling));
  EXPECT_TRUE(id) << id.error().message();
  return Drain(*engine)[*id];
}

TEST(Engine, CompanyChunksAndPreemptionChangeNothing) {
  // 7 blocks of 16 positions for three sequences of up to 65: they cannot all stay.
  auto engine = MustLoad({.context = 112, .chunk = 13});
  SamplingParams sampled;
  sampled.temperature = 1.5f;
  sampled.seed = 7;
  std::map<int64_t, std::vector<int32_t>> expected;
  for (int i = 0; i < 3; ++i) {
    const auto prompt = Prompt(i, 20 + 5 * i);
    const SamplingParams sampling = i == 1 ? sampled : SamplingParams{};
    auto id = engine->Submit(Ask(prompt, 35, sampling));
    ASSERT_TRUE(id) << id.error().message();
    expected[*id] = Alone(prompt, 35, sampling);
  }
  EXPECT_EQ(Drain(*engine), expected);
}

TEST(Engine, AKeptRequestIsContinuedWithoutComputingItAgain) {
  auto engine = MustLoad();
  const auto prompt = Prompt(3, 30);
  auto first = engine->Submit(Keep(Ask(prompt, 10)));
  ASSERT_TRUE(first);
  const auto answer = Drain(*engine)[*first];
  std::vector<int32_t> longer = prompt;
  longer.insert(longer.end(), answer.begin(), answer.end());
  for (const int32_t token : Prompt(9, 5)) longer.push_back(token);
  auto second = engine->Submit(Continue(Ask(longer, 12), *first));
  ASSERT_TRUE(second);
  EXPECT_EQ(engine->ReusedTokens(*second), 39);  // all but the last sampled token, which was never run
  EXPECT_EQ(Drain(*engine)[*second], Alone(longer, 12));
}

TEST(Engine, AKeptRequestThatDivergesIsUsedAsFarAsItGoes) {
  auto engine = MustLoad();
  auto first = engine->Submit(Keep(Ask(Prompt(3, 30), 5)));
  ASSERT_TRUE(first);
  Drain(*engine);
  auto other = Prompt(3, 30);
  other[20] = (other[20] + 1) % 48;
  auto second = engine->Submit(Continue(Ask(other, 9), *first));
  ASSERT_TRUE(second);
  EXPECT_EQ(engine->ReusedTokens(*second), 20);
  EXPECT_EQ(Drain(*engine)[*second], Alone(other, 9));
}

TEST(Engine, KeptBlocksMakeRoomForOthers) {
  auto engine = MustLoad({.context = 64});
  for (int i = 0; i < 4; ++i) {
    auto id = engine->Submit(Keep(Ask(Prompt(i, 30), 20)));
    ASSERT_TRUE(id);
    EXPECT_EQ(Drain(*engine)[*id].size(), 20u);
  }
}

TEST(Engine, AContinuedRequestThatWaitsMakesRoomForOthers) {
  auto engine = MustLoad({.context = 64});  // 4 blocks
  auto kept = engine->Submit(Keep(Ask(Prompt(3, 30), 2)));
  ASSERT_TRUE(kept);
  Drain(*engine);
  auto running = engine->Submit(Ask(Prompt(1, 20), 40));
  ASSERT_TRUE(running);
  auto events = engine->Step();
  ASSERT_EQ(events.size(), 1u);
  auto waiting = engine->Submit(Continue(Ask(Prompt(3, 60), 4), *kept));
  ASSERT_TRUE(waiting);
  auto answers = Drain(*engine);
  answers[*running].insert(answers[*running].begin(), events[0].token);
  EXPECT_EQ(answers[*running], Alone(Prompt(1, 20), 40));
  EXPECT_EQ(answers[*waiting], Alone(Prompt(3, 60), 4));
}

TEST(Engine, WhatIsKeptIsBounded) {
  auto engine = MustLoad({.context = 64});  // 4 blocks
  // A conversation: each turn takes over what the one before left.
  int64_t last = 0;
  for (int turn = 0; turn < 20; ++turn) {
    auto id = engine->Submit(Continue(Keep(Ask(Prompt(1, 10 + turn), 2)), last));
    ASSERT_TRUE(id);
    Drain(*engine);
    EXPECT_EQ(engine->ReusedTokens(*id), turn == 0 ? 0 : 9 + turn);
    EXPECT_EQ(engine->ReusedTokens(last), 0) << "turn " << turn << ": the one before is still known";
    EXPECT_EQ(engine->KeptRequests(), 1) << turn;
    last = *id;
  }
  // Cancelled before they began: there is nothing to keep.
  for (int i = 0; i < 100; ++i) {
    auto id = engine->Submit(Keep(Ask(Prompt(2, 10), 5)));
    ASSERT_TRUE(id);
    engine->Cancel(*id);
  }
  EXPECT_EQ(engine->KeptRequests(), 1);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(engine->Submit(Keep(Ask(Prompt(i, 10), 2))));
    Drain(*engine);
    EXPECT_LE(engine->KeptRequests(), 4);
  }
  engine->Release(last);
  engine->Release(12345);
}

TEST(Engine, StopTokensAndLength) {
  const auto tokens = Alone(Prompt(1, 10), 20);
  auto engine = MustLoad();
  Request request = Ask(Prompt(1, 10), 20);
  request.stop_tokens = {tokens[5]};
  auto id = engine->Submit(request);
  ASSERT_TRUE(id);
  FinishReason finish = FinishReason::kNone;
  size_t count = 0;
  while (engine->HasWork())
    for (const TokenEvent& event : engine->Step()) finish = event.finish, ++count;
  EXPECT_EQ(finish, FinishReason::kStop);
  EXPECT_LE(count, 6u);
}

TEST(Engine, TheContextBoundsAnAnswer) {
  auto engine = MustLoad({.context = 32});
  auto id = engine->Submit(Ask(Prompt(1, 20), 500));
  ASSERT_TRUE(id);
  EXPECT_EQ(Drain(*engine)[*id].size(), 13u);  // 32 positions in the KV, and one token more
}

TEST(Engine, CancelFreesAtOnceAndOthersGoOn) {
  auto engine = MustLoad({.context = 64});
  auto a = engine->Submit(Ask(Prompt(1, 20), 30));
  auto b = engine->Submit(Ask(Prompt(2, 10), 8));
  ASSERT_TRUE(a && b);
  engine->Step();
  engine->Cancel(*a);
  engine->Cancel(*a);  // again, and one that never was: nothing happens
  engine->Cancel(12345);
  EXPECT_EQ(Drain(*engine)[*b].size() + 1, Alone(Prompt(2, 10), 8).size());
}

TEST(Engine, BadRequestsAreRefusedInOneSentence) {
  auto engine = MustLoad({.context = 32});
  const auto refused = [&](Request request) {
    auto id = engine->Submit(std::move(request));
    return id ? std::string() : id.error().message();
  };
  EXPECT_NE(refused(Request()).find("no tokens"), std::string::npos);
  EXPECT_NE(refused(Ask({5, 48}, 5)).find("48"), std::string::npos);
  EXPECT_NE(refused(Ask({5, -1}, 5)).find("-1"), std::string::npos);
  EXPECT_NE(refused(Ask(Prompt(1, 32), 5)).find("--context"), std::string::npos);
  EXPECT_NE(refused(Ask({5}, 0)).find("max tokens"), std::string::npos);
  Request hot = Ask({5}, 5);
  hot.sampling.temperature = -1;
  EXPECT_NE(refused(hot).find("temperature"), std::string::npos);
  EXPECT_FALSE(engine->HasWork());
}

TEST(Engine, BadOptionsAreRefusedInOneSentence) {
  const auto refused = [](EngineOptions options) {
    if (options.model.empty()) options.model = kModel;
    auto engine = Engine::Load(options);
    return engine ? std::string() : engine.error().message();
  };
  EXPECT_NE(refused({.weights = "int3"}).find("int3"), std::string::npos);
  EXPECT_NE(refused({.weights = "int4-g33"}).find("g32"), std::string::npos);
  EXPECT_NE(refused({.kv = "int2"}).find("int2"), std::string::npos);
  EXPECT_NE(refused({.context = 1 << 20}).find("positions"), std::string::npos);
  EXPECT_NE(refused({.model = "/no/such/model"}).find("/no/such/model"), std::string::npos);
}

TEST(Engine, ScoreRefusesWhatItCannotScore) {
  auto engine = MustLoad({.context = 32});
  const std::vector<int32_t> bad = {1, 48}, good = {1, 2, 3}, long_one(33, 1);
  EXPECT_FALSE(engine->Score(bad, 1));
  EXPECT_FALSE(engine->Score(good, 0));
  EXPECT_FALSE(engine->Score(good, 4));
  EXPECT_FALSE(engine->Score(long_one, 1));
  EXPECT_TRUE(engine->Score(good, 1));
}

TEST(Engine, ScoreEqualsTheLogprobsOfGeneration) {
  auto engine = MustLoad({.kv = "f32"});
  SamplingParams sampling;
  sampling.logprobs = 0;
  const auto prompt = Prompt(4, 12);
  auto id = engine->Submit(Ask(prompt, 100, sampling));
  ASSERT_TRUE(id);
  std::vector<int32_t> tokens = prompt;
  std::vector<float> expected;
  while (engine->HasWork())
    for (const TokenEvent& event : engine->Step())
      tokens.push_back(event.token), expected.push_back(event.logprob);
  auto scores = engine->Score(tokens, static_cast<int64_t>(prompt.size()));
  ASSERT_TRUE(scores) << scores.error().message();
  ASSERT_EQ(scores->size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ((*scores)[i], expected[i]) << i;
}

}  // namespace
}  // namespace celer
