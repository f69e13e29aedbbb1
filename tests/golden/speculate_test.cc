// Speculative decoding on tiny models, as users have it: drafts that are verified several at a time give the
// tokens of plain decoding.
#include <gtest/gtest.h>

#include <map>

#include "base/source_dir.h"
#include "celer/engine.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/make_runner.h"

namespace celer {
namespace {

const std::string kModels = std::string(kSourceDir) + "/tests/golden/models/";

std::vector<Request> Requests() {
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    Request request;
    for (int k = 0; k < 12 + 9 * i; ++k) request.prompt.push_back((i * 31 + (k % 11) * 7) % 48);
    request.max_tokens = 40;
    if (i % 2 == 1) request.sampling = {.temperature = 0.7f, .top_k = 20, .seed = static_cast<uint64_t>(i)};
    if (i == 2) request.sampling.logprobs = 2;
    if (i == 3) request.n = 2;
    requests.push_back(request);
  }
  return requests;
}

struct Ran {
  std::map<std::pair<int64_t, int>, std::vector<std::pair<int32_t, float>>> tokens;
  EngineStats stats;
};

Ran RunAll(Engine& engine, const std::vector<Request>& requests) {
  Ran ran;
  for (const Request& request : requests) EXPECT_TRUE(engine.Submit(request));
  while (engine.HasWork())
    for (const TokenEvent& event : engine.Step()) {
      EXPECT_NE(event.finish, FinishReason::kError) << event.error;
      ran.tokens[{event.request, event.answer}].emplace_back(event.token, event.logprob);
    }
  ran.stats = engine.stats();
  return ran;
}

Ran RunAll(const EngineOptions& options, const std::vector<Request>& requests) {
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine) << engine.error().message();
  return engine ? RunAll(**engine, requests) : Ran();
}

// Drafts whether it pays or not.
Ran RunSpeculating(const EngineOptions& options, const std::vector<Request>& requests) {
  std::unique_ptr<DraftModel> draft;
  if (options.speculation.kind == Speculation::Kind::kDraft) {
    auto loaded = DraftModel::Load(options);
    EXPECT_TRUE(loaded) << loaded.error().message();
    if (!loaded) return {};
    draft = std::move(*loaded);
  }
  auto runner = MakeRunner(options);
  EXPECT_TRUE(runner) << runner.error().message();
  if (!runner) return {};
  auto engine = EngineInternals::Make(
      std::move(*runner), options,
      std::make_unique<Speculator>(
          Speculator::Options{.depth = 5, .same_tokens = options.deterministic, .always = true},
          std::move(draft)));
  const Ran ran = RunAll(*engine, requests);
  EXPECT_GT(ran.stats.accepted_tokens, 10);
  EXPECT_GT(ran.stats.drafted_tokens, ran.stats.accepted_tokens);
  return ran;
}

Speculation Parsed(const char* text) {
  const auto parsed = Speculation::Parse(text);
  EXPECT_TRUE(parsed);
  return *parsed;
}

TEST(Speculate, LookupGivesTheTokensOfPlainDecoding) {
  const std::vector<Request> requests = Requests();
  for (const char* model : {"llama3", "llama_dynamic", "qwen3_moe"}) {
    const EngineOptions plain{.model = kModels + model, .threads = 1};
    EngineOptions options = plain;
    options.speculation = Parsed("lookup");
    const Ran want = RunAll(plain, requests), got = RunSpeculating(options, requests);
    EXPECT_EQ(got.tokens, want.tokens) << model;
    EXPECT_EQ(got.stats.generated_tokens, want.stats.generated_tokens);
    EXPECT_LE(got.stats.steps, want.stats.steps) << "a text without drafts takes as many";
    EXPECT_EQ(RunAll(options, requests).tokens, want.tokens) << model << ", where it pays";
    options.context = 112;
    options.sequences = 1;  // 7 blocks: they drive each other out
    EXPECT_EQ(RunSpeculating(options, requests).tokens, want.tokens) << model << ", a small pool";
  }
}

TEST(Speculate, ADraftGivesTheTokensOfPlainDecoding) {
  std::vector<Request> requests = Requests();
  const EngineOptions plain{.model = kModels + "llama3", .threads = 1};
  EngineOptions options = plain;
  options.speculation = Parsed("self:int4");
  options.deterministic = true;
  EXPECT_EQ(RunSpeculating(options, requests).tokens, RunAll(plain, requests).tokens)
      << "also with a temperature";
  options.deterministic = false;
  for (Request& request : requests) request.sampling.temperature = 0;
  const Ran want = RunAll(plain, requests);
  EXPECT_EQ(RunSpeculating(options, requests).tokens, want.tokens);
  EXPECT_EQ(RunAll(options, requests).tokens, want.tokens) << "where it pays";
}

TEST(Speculate, WhatCannotDraftIsRefused) {
  EngineOptions options{.model = kModels + "llama3", .threads = 1};
  options.speculation = Parsed((kModels + "nowhere").c_str());
  EXPECT_FALSE(Engine::Load(options));
  options.speculation = Parsed("self:int3");
  EXPECT_FALSE(Engine::Load(options));
  options.speculation = Parsed("lookup");
  options.speculation.depth = 99;
  const auto engine = Engine::Load(options);
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().message().find("99"), std::string::npos);
}

}  // namespace
}  // namespace celer
