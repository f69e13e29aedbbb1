// The engine as its users see it, on a tiny model: batches, chunks, preemption and kept keys and values
// change nothing about the text.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "celer/engine.h"
#include "golden.h"

namespace celer {
namespace {

std::unique_ptr<Engine> MustLoad(EngineOptions options = {}) {
  options.model = kGoldenModel;
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
  auto engine = MustLoad({.context = 112, .chunk = 13, .sequences = 1});
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
  // A running request gets a token in every step. One that had tokens and gets none was preempted.
  std::map<int64_t, std::vector<int32_t>> got;
  std::map<int64_t, int> last;
  int preempted = 0;
  for (int step = 0; engine->HasWork() && step < 1000; ++step)
    for (const TokenEvent& event : engine->Step()) {
      preempted += last.contains(event.request) && last[event.request] != step - 1;
      last[event.request] = step;
      got[event.request].push_back(event.token);
    }
  EXPECT_EQ(got, expected);
  EXPECT_GT(preempted, 0) << "there was room for all: nothing was shown";
}

// Each answer's tokens, by request and answer, and how many prompt tokens were found.
struct Answers {
  std::map<std::pair<int64_t, int>, std::vector<int32_t>> tokens;
  std::map<int64_t, int64_t> cached;
  std::map<std::pair<int64_t, int>, TokenEvent> ends;
};
Answers DrainAnswers(Engine& engine) {
  Answers answers;
  std::map<int64_t, bool> done;
  for (int step = 0; engine.HasWork() && step < 10000; ++step)
    for (const TokenEvent& event : engine.Step()) {
      EXPECT_FALSE(done[event.request]) << "an event after the last one";
      done[event.request] = event.last;
      if (event.token != TokenEvent::kNoToken)
        answers.tokens[{event.request, event.answer}].push_back(event.token);
      answers.cached[event.request] += event.cached_tokens;
      if (event.finish != FinishReason::kNone) answers.ends[{event.request, event.answer}] = event;
    }
  for (const auto& [id, last] : done) EXPECT_TRUE(last) << "request " << id << " has no last event";
  EXPECT_FALSE(engine.HasWork()) << "stuck";
  return answers;
}

TEST(Engine, AnEarlierTurnIsNotComputedAgain) {
  auto engine = MustLoad();
  const auto prompt = Prompt(3, 30);
  auto first = engine->Submit(Ask(prompt, 10));
  ASSERT_TRUE(first);
  const auto answer = Drain(*engine)[*first];
  std::vector<int32_t> longer = prompt;
  longer.insert(longer.end(), answer.begin(), answer.end());
  for (const int32_t token : Prompt(9, 15)) longer.push_back(token);
  auto second = engine->Submit(Ask(longer, 12));
  ASSERT_TRUE(second);
  const Answers answers = DrainAnswers(*engine);
  EXPECT_EQ(answers.cached.at(*second), 32) << "two blocks: the prompt, and what was generated";
  EXPECT_EQ(answers.tokens.at({*second, 0}), Alone(longer, 12));
  EXPECT_EQ(engine->stats().cached_tokens, 32);
  EXPECT_EQ(engine->stats().prompt_tokens, 30 + 55);
}

TEST(Engine, APromptThatDivergesIsFoundAsFarAsItGoes) {
  auto engine = MustLoad();
  ASSERT_TRUE(engine->Submit(Ask(Prompt(3, 40), 5)));
  Drain(*engine);
  auto other = Prompt(3, 40);
  other[20] = (other[20] + 1) % 48;
  auto second = engine->Submit(Ask(other, 9));
  ASSERT_TRUE(second);
  const Answers answers = DrainAnswers(*engine);
  EXPECT_EQ(answers.cached.at(*second), 16);
  EXPECT_EQ(answers.tokens.at({*second, 0}), Alone(other, 9));
}

TEST(Engine, OnlyTheSameSaltSharesAPrefix) {
  auto engine = MustLoad();
  Request request = Ask(Prompt(3, 40), 5);
  for (const char* salt : {"", "a", "b", "a"}) {
    request.cache_salt = salt;
    static bool seen_a = false;
    auto id = engine->Submit(request);
    ASSERT_TRUE(id);
    const Answers answers = DrainAnswers(*engine);
    EXPECT_EQ(answers.cached.at(*id), *salt == 'a' && seen_a ? 32 : 0) << salt;
    seen_a |= *salt == 'a';
  }
}

TEST(Engine, WithoutAPrefixCacheNothingIsFound) {
  auto engine = MustLoad({.prefix_cache = false});
  for (int i = 0; i < 2; ++i) {
    auto id = engine->Submit(Ask(Prompt(3, 40), 5));
    ASSERT_TRUE(id);
    EXPECT_EQ(DrainAnswers(*engine).cached.at(*id), 0);
  }
  EXPECT_EQ(engine->stats().kv_blocks_cached, 0);
}

TEST(Engine, CachedBlocksMakeRoomForOthers) {
  auto engine = MustLoad({.context = 64, .sequences = 1});
  for (int i = 0; i < 4; ++i) {
    auto id = engine->Submit(Ask(Prompt(i, 30), 20));
    ASSERT_TRUE(id);
    EXPECT_EQ(Drain(*engine)[*id].size(), 20u);
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.kv_blocks_used, 0);
  EXPECT_GT(stats.evictions, 0);
  EXPECT_LE(stats.kv_blocks_cached, stats.kv_blocks);
}

TEST(Engine, AnswersShareThePromptAndDrawOnTheirOwn) {
  for (const int length : {1, 15, 16, 17, 40}) {
    auto engine = MustLoad({.chunk = 13});
    Request request = Ask(Prompt(5, length), 20, {.temperature = 1.5f, .seed = 11});
    request.n = 4;
    auto id = engine->Submit(request);
    ASSERT_TRUE(id);
    const Answers answers = DrainAnswers(*engine);
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(answers.tokens.at({*id, i}),
                Alone(request.prompt, 20, {.temperature = 1.5f, .seed = 11u + static_cast<uint64_t>(i)}))
          << length << ", answer " << i;
    EXPECT_EQ(engine->stats().kv_blocks_used, 0);
  }
}

TEST(Engine, ManyAnswersInASmallKv) {
  for (const Preemption preemption : {Preemption::kRecompute, Preemption::kSwap, Preemption::kAuto}) {
    auto engine = MustLoad(
        {.context = 64, .chunk = 9, .kv_host_memory = 1 << 20, .sequences = 1, .preemption = preemption});
    Request request = Ask(Prompt(5, 30), 25, {.temperature = 1.5f, .seed = 3});
    request.n = 6;
    auto id = engine->Submit(request), other = engine->Submit(Ask(Prompt(6, 20), 30));
    ASSERT_TRUE(id && other);
    const Answers answers = DrainAnswers(*engine);
    for (int i = 0; i < 6; ++i)
      EXPECT_EQ(answers.tokens.at({*id, i}),
                Alone(request.prompt, 25, {.temperature = 1.5f, .seed = 3u + static_cast<uint64_t>(i)}))
          << "answer " << i;
    EXPECT_EQ(answers.tokens.at({*other, 0}), Alone(Prompt(6, 20), 30));
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.swaps + stats.recomputations, 0);
    EXPECT_TRUE(preemption != Preemption::kSwap || stats.swaps > 0);
    EXPECT_EQ(stats.kv_blocks_used + stats.kv_host_blocks_used, 0);
  }
}

TEST(Engine, TheBestOfSeveralComeFirst) {
  const auto score = [](const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), answer.begin(), answer.end());
    auto scores = MustLoad()->Score(all, static_cast<int64_t>(prompt.size()));
    EXPECT_TRUE(scores);
    double sum = 0;
    for (const float logprob : *scores) sum += double{logprob};
    return sum / static_cast<double>(answer.size());
  };
  auto engine = MustLoad();
  Request request = Ask(Prompt(5, 20), 12, {.temperature = 1.5f, .seed = 3});
  request.n = 2;
  request.best_of = 5;
  auto id = engine->Submit(request);
  ASSERT_TRUE(id);
  const Answers answers = DrainAnswers(*engine);
  ASSERT_EQ(answers.tokens.size(), 2u);
  std::vector<double> all;
  for (uint64_t i = 0; i < 5; ++i)
    all.push_back(score(request.prompt, Alone(request.prompt, 12, {.temperature = 1.5f, .seed = 3 + i})));
  std::sort(all.rbegin(), all.rend());
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(score(request.prompt, answers.tokens.at({*id, i})), all[static_cast<size_t>(i)], 1e-5);
    EXPECT_NEAR(answers.ends.at({*id, i}).score, all[static_cast<size_t>(i)], 1e-4);
  }
}

TEST(Engine, PromptLogprobsAreThoseOfScore) {
  const auto prompt = Prompt(4, 100);
  auto scores = MustLoad()->Score(prompt, 1);
  ASSERT_TRUE(scores);
  auto engine = MustLoad({.chunk = 17});
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second time the prompt is cached
    Request request = Ask(prompt, 3);
    request.prompt_logprobs = 2;
    auto id = engine->Submit(request);
    ASSERT_TRUE(id);
    std::vector<TokenEvent> events;
    while (engine->HasWork())
      for (TokenEvent& event : engine->Step()) events.push_back(std::move(event));
    ASSERT_EQ(events.size(), 3u);
    ASSERT_EQ(events[0].prompt.size(), 99u);
    EXPECT_TRUE(events[1].prompt.empty());
    for (size_t i = 0; i < 99; ++i) {
      EXPECT_EQ(events[0].prompt[i].logprob, (*scores)[i]) << i;
      EXPECT_EQ(events[0].prompt[i].top.size(), 2u);
    }
    EXPECT_EQ(events[0].token, Alone(prompt, 1)[0]);
  }
}

// Allows the tokens of a list, one after the other, and then nothing.
class Spells : public TokenMask {
 public:
  explicit Spells(std::vector<int32_t> word) : word_(std::move(word)) {}
  std::unique_ptr<TokenMask> Clone() const override { return std::make_unique<Spells>(*this); }
  void Allow(std::span<uint32_t> bits) override {
    if (at_ < word_.size()) bits[static_cast<size_t>(word_[at_]) / 32] |= 1u << (word_[at_] % 32);
  }
  void Accept(int32_t token) override { EXPECT_EQ(token, word_[at_++]); }

 private:
  std::vector<int32_t> word_;
  size_t at_ = 0;
};

TEST(Engine, MasksAllowedTokensAndLeastLengths) {
  auto engine = MustLoad();
  Request request = Ask(Prompt(1, 10), 20, {.temperature = 2, .seed = 5});
  request.mask = std::make_shared<Spells>(std::vector<int32_t>{7, 3, 40});
  request.n = 2;
  auto spelled = engine->Submit(request);
  ASSERT_TRUE(spelled);
  SamplingParams some{.temperature = 2, .allowed_tokens = {4, 9}, .seed = 1};
  auto allowed = engine->Submit(Ask(Prompt(2, 10), 20, some));
  ASSERT_TRUE(allowed);
  const auto plain = Alone(Prompt(3, 10), 20);
  request = Ask(Prompt(3, 10), 20);
  request.stop_tokens = {plain[0], plain[2]};
  request.min_tokens = 6;
  auto longer = engine->Submit(request);
  ASSERT_TRUE(longer);
  const Answers answers = DrainAnswers(*engine);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(answers.tokens.at({*spelled, i}), (std::vector<int32_t>{7, 3, 40}));
    EXPECT_EQ(answers.ends.at({*spelled, i}).finish, FinishReason::kStop);
  }
  for (const int32_t token : answers.tokens.at({*allowed, 0})) EXPECT_TRUE(token == 4 || token == 9) << token;
  EXPECT_GE(answers.tokens.at({*longer, 0}).size(), 6u);
}

TEST(Engine, AnAnswerIsResumedAnywhere) {
  Request request = Ask(Prompt(3, 21), 24);
  SamplingParams sampled{
      .temperature = 1.5f, .top_p = 0.95f, .repetition_penalty = 1.2f, .seed = 11, .logprobs = 2};
  sampled.frequency_penalty = 0.3f;
  for (const SamplingParams& sampling : {SamplingParams{.logprobs = 0}, sampled}) {
    request.sampling = sampling;
    request.resumed = {};
    const auto run = [&](Engine& engine) {
      std::vector<std::pair<int32_t, float>> out;
      EXPECT_TRUE(engine.Submit(request));
      while (engine.HasWork())
        for (const TokenEvent& event : engine.Step()) {
          out.emplace_back(event.token, event.logprob);
          EXPECT_LE(event.cached_tokens, std::ssize(request.prompt));
        }
      return out;
    };
    const auto whole = run(*MustLoad());
    ASSERT_EQ(whole.size(), 24u);
    // The second one has a part of each text in its cache, as of an answer that it was asked for before.
    const auto cold = MustLoad({.chunk = 7, .prefix_cache = false}), warm = MustLoad();
    for (size_t cut = 1; cut < whole.size(); ++cut) {
      request.resumed.push_back(whole[cut - 1].first);
      const std::vector rest(whole.begin() + static_cast<int64_t>(cut), whole.end());
      EXPECT_EQ(run(*cold), rest) << cut;
      EXPECT_EQ(run(*warm), rest) << cut;
    }
  }
}

TEST(Engine, ADeadlineEndsARequest) {
  auto engine = MustLoad();
  Request request = Ask(Prompt(1, 10), 400);
  request.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  auto late = engine->Submit(request), other = engine->Submit(Ask(Prompt(1, 10), 4));
  ASSERT_TRUE(late && other);
  const Answers answers = DrainAnswers(*engine);
  EXPECT_EQ(answers.ends.at({*late, 0}).finish, FinishReason::kDeadline);
  EXPECT_EQ(answers.tokens.at({*other, 0}).size(), 4u);
}

TEST(Engine, WhatCanNeverFitIsRefusedWithTheNumbers) {
  auto engine = MustLoad({.context = 64, .sequences = 1});  // 4 blocks
  Request request = Ask(Prompt(1, 10), 50);
  request.beam.width = 3;
  auto id = engine->Submit(request);
  ASSERT_TRUE(id);
  const Answers answers = DrainAnswers(*engine);
  const TokenEvent end = answers.ends.at({*id, 0});
  EXPECT_EQ(end.finish, FinishReason::kRefused);
  EXPECT_EQ(
      end.error,
      "3 beams of up to 60 tokens need 12 blocks of 16 tokens, and the KV has 4; lower the beam width or "
      "max tokens, or raise `kv_memory`");
}

TEST(Engine, BeamsSurvivePreemption) {
  Request request = Ask(Prompt(1, 20), 20);
  request.beam.width = 3;
  request.n = 3;
  std::vector<Answers> all;
  for (const bool small : {false, true}) {
    auto engine = MustLoad({.context = small ? 160 : 0, .chunk = 7, .sequences = small ? 1 : 0});
    std::vector<int64_t> ids;
    for (int i = 0; i < 3; ++i) {
      request.prompt = Prompt(i, 20 + i);
      auto id = engine->Submit(request);
      ASSERT_TRUE(id);
    }
    all.push_back(DrainAnswers(*engine));
    EXPECT_EQ(engine->stats().kv_blocks_used, 0);
    EXPECT_EQ(engine->stats().recomputations > 0, small);
  }
  EXPECT_EQ(all[0].tokens.size(), 9u);
  EXPECT_EQ(all[0].tokens, all[1].tokens);
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
  auto engine = MustLoad({.context = 64, .sequences = 1});
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
  EXPECT_NE(refused(Ask(Prompt(1, 32), 5)).find("`context`"), std::string::npos);
  EXPECT_NE(refused(Ask({5}, 0)).find("max tokens"), std::string::npos);
  Request hot = Ask({5}, 5);
  hot.sampling.temperature = -1;
  EXPECT_NE(refused(hot).find("temperature"), std::string::npos);
  Request more = Ask({5}, 5);
  more.resumed = {1, 2, 48};
  EXPECT_NE(refused(more).find("48"), std::string::npos);
  more.resumed.assign(5, 1);
  EXPECT_NE(refused(more).find("nothing is left"), std::string::npos);
  more.max_tokens = 100'000;
  more.resumed.assign(50'000, 1);
  EXPECT_NE(refused(more).find("50000"), std::string::npos);
  more.resumed = {1};
  more.n = 2;
  EXPECT_NE(refused(more).find("one answer"), std::string::npos);
  EXPECT_FALSE(engine->HasWork());
}

TEST(Engine, BadOptionsAreRefusedInOneSentence) {
  const auto refused = [](EngineOptions options) {
    if (options.model.empty()) options.model = kGoldenModel;
    auto engine = Engine::Load(options);
    return engine ? std::string() : engine.error().message();
  };
  EXPECT_NE(refused({.threads = -1}).find("-1"), std::string::npos);
  EXPECT_NE(refused({.chunk = 0}).find("`chunk` 0"), std::string::npos);
  EXPECT_NE(refused({.context = 64, .kv_memory = {.bytes = 100}}).find("context of 64"), std::string::npos);
  EXPECT_NE(refused({.kv_memory = {.share = 1.5}}).find("`kv_memory`"), std::string::npos);
  EXPECT_NE(refused({.device = DeviceOptions::Cuda(99)}).find("cuda:99"), std::string::npos);
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
  auto engine = MustLoad({.kv = KvType::kF32});
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

TEST(Engine, ScoringAndOtherRequestsDoNotDisturbEachOther) {
  // 10 blocks: a text of 100 tokens and an answer of 90 do not fit beside each other.
  auto engine = MustLoad({.kv = KvType::kF32, .threads = 1, .context = 160, .chunk = 7, .sequences = 1});
  auto alone = MustLoad({.kv = KvType::kF32, .threads = 1});
  const auto text = Prompt(5, 100);
  const auto expected = alone->Score(text, 3);
  auto id = alone->Submit(Ask(Prompt(1, 20), 70));
  ASSERT_TRUE(expected && id);
  const auto tokens = Drain(*alone)[*id];

  id = engine->Submit(Ask(Prompt(1, 20), 70));
  ASSERT_TRUE(id);
  std::vector<int32_t> got;
  for (int i = 0; i < 10; ++i)
    for (const TokenEvent& event : engine->Step()) got.push_back(event.token);
  const auto scores = engine->Score(text, 3);
  ASSERT_TRUE(scores) << scores.error().message();
  EXPECT_EQ(*scores, *expected);
  const auto rest = Drain(*engine)[*id];
  got.insert(got.end(), rest.begin(), rest.end());
  EXPECT_EQ(got, tokens);
}

}  // namespace
}  // namespace celer
