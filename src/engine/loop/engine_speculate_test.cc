// Speculative decoding below the engine, with a simulated model: drafts change nothing about the texts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "engine/loop/engine_internals.h"
#include "engine/runners/simulated_runner.h"

namespace celer {
namespace {

std::unique_ptr<SimulatedRunner> Simulated(const HashModel& model, int64_t blocks, bool ahead = false,
                                           int64_t states = 0) {
  SimulatedRunner::Options options{.model = model};
  options.info.kv_blocks = blocks;
  options.info.kv_host_blocks = states > 0 ? 40 : 0;
  options.info.state_slots = states;
  options.info.context = 256;
  options.runs_ahead = ahead;
  return std::make_unique<SimulatedRunner>(std::move(options));
}

struct World {
  HashModel model = {.vocab = 24, .order = 1};  // so that texts repeat themselves
  int64_t blocks = 200;
  bool ahead = false;
  EngineOptions options = {};
  int64_t states = 0;  // of a model with recurrent layers
};

std::unique_ptr<SimulatedRunner> RunnerOf(const World& world) {
  return Simulated(world.model, world.blocks, world.ahead, world.states);
}

std::unique_ptr<Engine> Plain(const World& world) {
  return EngineInternals::Make(RunnerOf(world), world.options);
}

std::unique_ptr<Engine> WithLookup(const World& world, int depth = 0, bool always = true) {
  return EngineInternals::Make(
      RunnerOf(world), world.options,
      std::make_unique<Speculator>(Speculator::Options{.depth = depth, .always = always}));
}

std::unique_ptr<Engine> WithDraft(const World& world, const HashModel& draft, int64_t draft_blocks = 200,
                                  bool same_tokens = false, int64_t draft_states = 0) {
  return EngineInternals::Make(
      RunnerOf(world), world.options,
      std::make_unique<Speculator>(
          Speculator::Options{.depth = 4, .same_tokens = same_tokens, .always = true},
          std::make_unique<DraftModel>(Simulated(draft, draft_blocks, false, draft_states))));
}

std::vector<int32_t> Prompt(int seed, int length) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((seed * 5 + i * (1 + seed % 3)) % 24);
  return tokens;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::kNone;
  bool operator==(const Answer&) const = default;
};
using Answers = std::map<std::pair<int64_t, int>, Answer>;

Answers RunAll(Engine& engine, const std::vector<Request>& requests) {
  Answers answers;
  for (const Request& request : requests) {
    const auto id = engine.Submit(request);
    EXPECT_TRUE(id) << id.error().message();
  }
  for (int step = 0; engine.HasWork() && step < 20000; ++step) {
    for (const TokenEvent& event : engine.Step()) {
      EXPECT_NE(event.finish, FinishReason::kError) << event.error;
      Answer& answer = answers[{event.request, event.answer}];
      EXPECT_EQ(answer.finish, FinishReason::kNone) << "a token after the end";
      if (event.token != TokenEvent::kNoToken) {
        answer.tokens.push_back(event.token);
        answer.logprobs.push_back(event.logprob);
      }
      answer.finish = event.finish;
    }
    if (engine.fault()) {
      ADD_FAILURE() << engine.fault()->message();
      break;
    }
    EXPECT_EQ(EngineInternals::CheckInvariants(engine), "");
  }
  EXPECT_FALSE(engine.HasWork()) << "stuck";
  EXPECT_EQ(engine.stats().kv_blocks_used, 0);
  return answers;
}

// Greedy and sampled, with stop tokens, least lengths, penalties, logprobs, and several answers.
std::vector<Request> ManyRequests() {
  std::vector<Request> requests;
  for (int i = 0; i < 24; ++i) {
    Request request{.prompt = Prompt(i, 5 + 3 * i), .max_tokens = 1 + (i * 7) % 60};
    if (i % 2 == 1) request.sampling = {.temperature = 0.4f, .seed = static_cast<uint64_t>(i)};
    if (i % 3 == 0) request.stop_tokens = {i % 24, (i * 11) % 24};
    if (i % 6 == 0) request.min_tokens = request.max_tokens / 2;
    if (i % 5 == 0) request.sampling.logprobs = 2;
    if (i % 7 == 0) request.sampling.frequency_penalty = 0.01f;
    if (i % 4 == 3) request.n = 3;
    if (i % 8 == 5) request.best_of = 2;
    if (i % 9 == 0) request.prompt_logprobs = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

int64_t Sum(const std::vector<int64_t>& counts) {
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  return sum;
}

TEST(Speculate, LookupChangesNoToken) {
  const std::vector<Request> requests = ManyRequests();
  for (const bool ahead : {false, true})
    for (const int64_t blocks : {200, 17}) {
      const World world{.blocks = blocks, .ahead = ahead};
      auto plain = Plain(world);
      const Answers want = RunAll(*plain, requests);
      for (const int depth : {1, 3, 15}) {
        auto engine = WithLookup(world, depth);
        EXPECT_EQ(RunAll(*engine, requests), want) << depth << " " << blocks << " " << ahead;
        const EngineStats stats = engine->stats();
        EXPECT_GT(stats.accepted_tokens, 100);
        EXPECT_GT(stats.drafted_tokens, stats.accepted_tokens) << "no draft was rejected: too easy";
        EXPECT_LE(std::ssize(stats.accepted), depth + 1);
        int64_t accepted = 0;
        for (size_t i = 0; i < stats.accepted.size(); ++i)
          accepted += static_cast<int64_t>(i) * stats.accepted[i];
        EXPECT_EQ(accepted, stats.accepted_tokens);
        EXPECT_EQ(stats.generated_tokens, plain->stats().generated_tokens);
        EXPECT_TRUE(blocks > 20 || stats.swaps + stats.recomputations > 0);
      }
      // What it decides by itself may depend on the time, the text may not.
      auto adaptive = WithLookup(world, 0, false);
      EXPECT_EQ(RunAll(*adaptive, requests), want);
    }
}

// A state goes back behind a rejected draft, whatever else happens to its sequence. The simulated runner compares each
// state with the text that it is taken to be of.
TEST(Speculate, ARecurrentStateFollowsTheAcceptedTokens) {
  const std::vector<Request> requests = ManyRequests();
  for (const Preemption preemption : {Preemption::kRecompute, Preemption::kSwap})
    for (const int64_t blocks : {200, 17})
      for (const int64_t states : {60, 6}) {
        const World world{.blocks = blocks, .options = {.preemption = preemption}, .states = states};
        auto plain = Plain(world);
        const Answers want = RunAll(*plain, requests);
        for (const int depth : {1, 4, 15}) {
          auto engine = WithLookup(world, depth);
          EXPECT_EQ(RunAll(*engine, requests), want) << depth << " " << blocks << " " << states;
          const EngineStats stats = engine->stats();
          // With few states most are taken by sequences, and drafts wait.
          EXPECT_GT(stats.accepted_tokens, states > 20 ? 100 : 0);
          EXPECT_GT(stats.drafted_tokens, stats.accepted_tokens);
          if (states < 20) continue;
          if (blocks > 20) {
            EXPECT_LT(stats.steps, plain->stats().steps);
          }
          const auto partly = stats.accepted.size() > 2
                                  ? Sum({stats.accepted.begin() + 1, stats.accepted.end() - 1})
                                  : stats.accepted.at(0);
          EXPECT_GT(partly, 0) << "no draft was accepted in part";
        }
      }
}

TEST(Speculate, ADraftModelMayHaveRecurrentLayers) {
  std::vector<Request> requests = ManyRequests();
  for (Request& request : requests) request.sampling.temperature = 0;
  for (const int64_t states : {0, 40}) {
    const World world{.states = states};
    const Answers want = RunAll(*Plain(world), requests);
    HashModel other = world.model;
    other.seed = 1;
    for (const HashModel& draft : {world.model, other})
      for (const int64_t draft_states : {100, 5}) {
        auto engine = WithDraft(world, draft, 200, false, draft_states);
        EXPECT_EQ(RunAll(*engine, requests), want) << draft.seed << " " << draft_states;
        const EngineStats stats = engine->stats();
        EXPECT_GT(Sum(stats.accepted), 0);
        if (draft.seed == 0) {
          EXPECT_GT(10 * stats.accepted_tokens, 9 * stats.drafted_tokens);
        }
      }
  }
}

TEST(Speculate, OneStepGivesSeveralTokens) {
  const World world;
  const Request request{.prompt = Prompt(1, 8), .max_tokens = 120};
  auto engine = WithLookup(world, 8);
  RunAll(*engine, {request});
  EXPECT_LT(engine->stats().steps, 50);
  EXPECT_GT(engine->stats().accepted.at(8), 5);
}

TEST(Speculate, ADraftChangesNoGreedyToken) {
  std::vector<Request> requests = ManyRequests();
  for (Request& request : requests) request.sampling.temperature = 0;
  for (const int64_t blocks : {200, 17}) {
    const World world{.blocks = blocks};
    const Answers want = RunAll(*Plain(world), requests);
    HashModel other = world.model;
    other.seed = 1;
    for (const HashModel& draft : {world.model, other})
      for (const int64_t draft_blocks : {200, 7}) {
        auto engine = WithDraft(world, draft, draft_blocks);
        EXPECT_EQ(RunAll(*engine, requests), want) << draft.seed << " " << blocks << " " << draft_blocks;
        const EngineStats stats = engine->stats();
        EXPECT_GT(Sum(stats.accepted), 0);
        // The same model is always accepted, but for what it drafts behind a stop token; another only by
        // chance.
        if (draft.seed == 0) {
          EXPECT_GT(10 * stats.accepted_tokens, 9 * stats.drafted_tokens);
        } else {
          EXPECT_LT(5 * stats.accepted_tokens, stats.drafted_tokens);
        }
      }
  }
}

TEST(Speculate, ADraftCanKeepToTheTokensOfTheSeed) {
  const std::vector<Request> requests = ManyRequests();
  const World world;
  const Answers want = RunAll(*Plain(world), requests);
  HashModel draft = world.model;
  auto engine = WithDraft(world, draft, 200, /*same_tokens=*/true);
  EXPECT_EQ(RunAll(*engine, requests), want);
  EXPECT_GT(10 * engine->stats().accepted_tokens, 9 * engine->stats().drafted_tokens);
  draft.seed = 2;
  EXPECT_EQ(RunAll(*WithDraft(world, draft, 200, /*same_tokens=*/true), requests), want);
}

// The first three tokens of an answer against the probabilities of the model itself.
TEST(Speculate, ADraftDrawsFromTheTargetsDistribution) {
  constexpr int kRequests = 6000, kVocab = 4;
  const World world{.model = {.vocab = kVocab, .seed = 5}, .blocks = 4000};
  const std::vector<int32_t> prompt = {1, 2, 0, 3, 1, 1};
  const SamplingParams sampling{.temperature = 2.5f, .top_k = 3};
  std::map<std::vector<int32_t>, int> counts;
  auto engine = WithDraft(world, {.vocab = kVocab, .seed = 6}, 4000);
  std::vector<Request> requests;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back({.prompt = prompt, .sampling = sampling, .max_tokens = 4});
    requests.back().sampling.seed = static_cast<uint64_t>(i);
  }
  for (size_t begin = 0; begin < requests.size(); begin += 200) {
    const std::vector<Request> some(requests.begin() + static_cast<int64_t>(begin),
                                    requests.begin() + static_cast<int64_t>(begin) + 200);
    for (const auto& [id, answer] : RunAll(*engine, some))
      ++counts[{answer.tokens.begin(), answer.tokens.begin() + 3}];
  }
  double chi2 = 0;
  int cells = 0, drawn = 0;
  std::vector<float> row(kVocab);
  const std::function<void(std::vector<int32_t>, double)> visit = [&](std::vector<int32_t> tokens,
                                                                      double probability) {
    if (tokens.size() == 3) {
      const double expected = probability * kRequests, got = counts[tokens];
      chi2 += (got - expected) * (got - expected) / expected;
      drawn += static_cast<int>(got);
      ++cells;
      EXPECT_GT(expected, 5);
      return;
    }
    std::vector<int32_t> text = prompt;
    text.insert(text.end(), tokens.begin(), tokens.end());
    world.model.Logits(world.model.HashOf(text), row);
    Sampler sampler(sampling, {});
    for (const auto& [token, p] : sampler.DistributionOf(row)) {
      tokens.push_back(token);
      visit(tokens, probability * double{p});
      tokens.pop_back();
    }
  };
  visit({}, 1);
  EXPECT_EQ(cells, 27);
  EXPECT_EQ(drawn, kRequests) << "a text came that cannot";
  EXPECT_LT(chi2, cells - 1 + 5 * std::sqrt(2.0 * (cells - 1)));
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.accepted_tokens, kRequests / 4);
  EXPECT_LT(stats.accepted_tokens, stats.drafted_tokens * 9 / 10);
}

// The logits after one token are not finite where they are looked at.
class PoisonedRunner : public SimulatedRunner {
 public:
  PoisonedRunner(Options options, int32_t poison) : SimulatedRunner(std::move(options)), poison_(poison) {}

  Status Queue(std::span<const Slice> slices) override {
    rows_.clear();
    for (const Slice& slice : slices)
      if (slice.rows == Slice::Rows::kAll)
        rows_.insert(rows_.end(), slice.tokens.end() - slice.row_count(), slice.tokens.end());
    return SimulatedRunner::Queue(slices);
  }
  Result<StepOutput> Take() override {
    auto output = SimulatedRunner::Take();
    if (!output) return output;
    logits_.assign(output->logits.begin(), output->logits.end());
    const size_t vocab = rows_.empty() ? 0 : logits_.size() / rows_.size();
    for (size_t i = 0; i < rows_.size(); ++i)
      if (rows_[i] == poison_) logits_[i * vocab] = std::nanf(""), ++poisoned;
    output->logits = logits_;
    return output;
  }
  int poisoned = 0;

 private:
  int32_t poison_;
  std::vector<int32_t> rows_;
  std::vector<float> logits_;
};

TEST(Speculate, RejectedDraftsMayHaveLogitsThatAreNotFinite) {
  const World world;
  // A token of the prompt that the model itself never says.
  std::vector<Request> requests;
  int32_t poison = 0;
  for (int seed = 0; requests.empty() && seed < 50; ++seed) {
    Request request{.prompt = Prompt(seed, 30), .max_tokens = 50};
    auto plain = Plain(world);
    const std::vector<int32_t> text = RunAll(*plain, {request}).begin()->second.tokens;
    for (poison = 0; poison < 24; ++poison) {
      if (std::count(text.begin(), text.end(), poison) > 0) continue;
      // After the answer's second and third token the prompt went on with it. What the model says depends on
      // the last token alone, so it says the third after the second here, too.
      request.prompt.clear();
      for (int i = 0; i < 8; ++i)
        request.prompt.insert(request.prompt.end(), {text[1], text[2], poison, poison});
      request.prompt.push_back(text[1]);
      requests.push_back(request);
      break;
    }
  }
  ASSERT_EQ(requests.size(), 1u);
  const Answers want = RunAll(*Plain(world), requests);
  for (const int64_t states : {0, 4}) {
    SimulatedRunner::Options options{.model = world.model};
    options.info.kv_blocks = world.blocks;
    options.info.context = 256;
    options.info.state_slots = states;
    auto runner = std::make_unique<PoisonedRunner>(std::move(options), poison);
    PoisonedRunner* const watched = runner.get();
    auto engine = EngineInternals::Make(std::move(runner), world.options,
                                        std::make_unique<Speculator>(Speculator::Options{.always = true}));
    EXPECT_EQ(RunAll(*engine, requests), want);
    EXPECT_GT(watched->poisoned, 0) << "no draft had that token: nothing was shown";
  }
}

TEST(Speculate, ADraftOfAnotherVocabularyIsRefused) {
  Speculator speculator({}, std::make_unique<DraftModel>(Simulated({.vocab = 30}, 10)));
  Runner::Info target;
  target.config.vocab = 24;
  const Status fits = speculator.SetTarget(target);
  ASSERT_FALSE(fits);
  EXPECT_NE(fits.error().message().find("30"), std::string::npos);
  EXPECT_NE(fits.error().message().find("24"), std::string::npos);
  target.config.vocab = 30;
  EXPECT_TRUE(speculator.SetTarget(target));
}

}  // namespace
}  // namespace celer
