// What recurrent_test.cc checks, on a GPU: sequences that are preempted, swapped out, forked, gone on with as beams, and
// begun behind a cached prefix have the same answers as those that are left alone.
#include <gtest/gtest.h>

#include <map>

#include "base/device.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/cuda_runner.h"
#include "golden.h"

namespace celer {
namespace {

#define NEEDS_GPU() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

// Blocks of keys and values for so many sequences of kContext tokens, and twice as many states.
constexpr int64_t kContext = 128, kAmple = 24, kScarce = 3;

std::unique_ptr<Engine> MakeEngine(const std::string& name, int64_t sequences, const EngineOptions& options) {
  ThreadPool pool({.threads = 2});
  const auto model = Model::Load(kGolden / "models" / name, {.pack = false}, pool);
  EXPECT_TRUE(model) << model.error().message();
  // A token's products do not depend on the others of its step.
  const CudaDecoderOptions cuda{.context = kContext,
                                .max_tokens = 512,
                                .exact = true,
                                .kv_budget = {.context = kContext, .sequences = sequences}};
  auto decoder = CudaDecoder::Make(*model, cuda);
  EXPECT_TRUE(decoder) << decoder.error().message();
  auto runner = CudaRunner::Make(std::move(*decoder), cuda, /*host_blocks=*/60, 1);
  EXPECT_TRUE(runner) << runner.error().message();
  EXPECT_EQ((*runner)->info().state_slots, 2 * sequences);
  return EngineInternals::Make(std::move(*runner), options);
}

using Answers = std::map<std::pair<size_t, int>, std::vector<int32_t>>;  // by request and answer

struct Outcome {
  Answers answers;
  EngineStats stats;
};

Outcome Ask(Engine& engine, const std::vector<Request>& requests) {
  std::map<int64_t, size_t> index;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto id = engine.Submit(requests[i]);
    EXPECT_TRUE(id) << id.error().message();
    index[*id] = i;
  }
  Outcome outcome;
  while (engine.HasWork()) {
    for (const TokenEvent& event : engine.Step()) {
      EXPECT_EQ(event.error, "");
      if (event.token != TokenEvent::kNoToken)
        outcome.answers[{index[event.request], event.answer}].push_back(event.token);
    }
    EXPECT_EQ(EngineInternals::CheckInvariants(engine), "");
  }
  EXPECT_FALSE(engine.fault());
  outcome.stats = engine.stats();
  return outcome;
}

Request RandomRequest(int seed, int length, int64_t tokens) {
  Request request;
  for (int i = 0; i < length; ++i) request.prompt.push_back((seed * 11 + i * i * 5 + i) % 48);
  request.max_tokens = tokens;
  return request;
}

std::vector<Request> Mixed() {
  std::vector<Request> requests = {RandomRequest(1, 50, 60), RandomRequest(2, 3, 70),
                                   RandomRequest(1, 50, 20), RandomRequest(3, 33, 50),
                                   RandomRequest(4, 1, 40)};
  for (const size_t i : {3, 4}) {
    requests[i].n = static_cast<int>(6 - i);
    requests[i].sampling.temperature = 1;
    requests[i].sampling.seed = 7;
  }
  Request beams = RandomRequest(5, 20, 30);
  beams.beam.width = 3;
  beams.n = 2;
  requests.push_back(beams);
  return requests;
}

// One after the other, with nothing cached.
Answers Alone(const std::string& name, const std::vector<Request>& requests) {
  auto engine = MakeEngine(name, kAmple, {.prefix_cache = false});
  Answers all;
  for (size_t i = 0; i < requests.size(); ++i)
    for (auto& [key, answer] : Ask(*engine, {requests[i]}).answers) all[{i, key.second}] = std::move(answer);
  return all;
}

class CudaRecurrent : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaRecurrent, AnswersAreThoseOfSequencesLeftAlone) {
  NEEDS_GPU();
  const std::vector<Request> requests = Mixed();
  const Answers alone = Alone(GetParam(), requests);
  for (const int chunk : {5, 16, 512}) {
    auto engine = MakeEngine(GetParam(), kAmple, {.chunk = chunk});
    EXPECT_EQ(Ask(*engine, requests).answers, alone) << "in steps of " << chunk;
    const Outcome again = Ask(*engine, requests);
    EXPECT_EQ(again.answers, alone) << "with cached prefixes";
    EXPECT_GT(again.stats.cached_tokens, 0);
  }
}

TEST_P(CudaRecurrent, PreemptionChangesNoAnswer) {
  NEEDS_GPU();
  const std::vector<Request> requests = Mixed();
  const Answers alone = Alone(GetParam(), requests);
  int64_t preempted = 0;
  for (const Preemption preemption : {Preemption::kRecompute, Preemption::kSwap}) {
    auto engine = MakeEngine(GetParam(), kScarce, {.chunk = 13, .preemption = preemption});
    const Outcome outcome = Ask(*engine, requests);
    EXPECT_EQ(outcome.answers, alone);
    preempted += outcome.stats.swaps + outcome.stats.recomputations;
  }
  EXPECT_GT(preempted, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaRecurrent, ::testing::Values("qwen3_next", "qwen3_5", "qwen3_5_moe"));

}  // namespace
}  // namespace celer
