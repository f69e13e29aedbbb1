// What an engine answers to requests, in a form that can be compared: by request and answer, tokens and log-probabilities.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "engine/loop/engine_internals.h"

namespace celer::engine_answers {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};
using Answers = std::map<std::pair<size_t, int>, Answer>;  // by request and answer

struct Outcome {
  Answers answers;
  EngineStats stats;
};

inline Outcome Ask(Engine& engine, const std::vector<Request>& requests) {
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
      if (event.token == TokenEvent::kNoToken) continue;
      Answer& answer = outcome.answers[{index[event.request], event.answer}];
      answer.tokens.push_back(event.token);
      answer.logprobs.push_back(event.logprob);
    }
    EXPECT_EQ(EngineInternals::CheckInvariants(engine), "");
  }
  outcome.stats = engine.stats();
  return outcome;
}

inline Request RandomRequest(int seed, int length, int64_t tokens) {
  Request request;
  for (int i = 0; i < length; ++i) request.prompt.push_back((seed * 11 + i * i * 5 + i) % 48);
  request.max_tokens = tokens;
  request.sampling.logprobs = 0;
  return request;
}

// One after the other, by an engine that caches nothing.
inline Answers AskAlone(Engine& engine, const std::vector<Request>& requests) {
  Answers all;
  for (size_t i = 0; i < requests.size(); ++i)
    for (auto& [key, answer] : Ask(engine, {requests[i]}).answers) all[{i, key.second}] = std::move(answer);
  return all;
}

}  // namespace celer::engine_answers
