// What tests of layers on several devices or ranks compare: logits and hidden states of tiny models, and answers of an engine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "celer/engine.h"
#include "engine/runners/make_runner.h"
#include "golden.h"

namespace celer::placed {  // other tests that it is compiled with have helpers of the same names

namespace fs = std::filesystem;

inline std::vector<fs::path> AllModels() {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(kGolden / "models")) all.push_back(entry.path());
  for (const char* folder : {"gguf", "llama2c"})
    for (const auto& entry : fs::directory_iterator(kGolden / folder))
      if (entry.path().extension() == ".gguf" || entry.path().extension() == ".bin")
        all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

inline std::vector<int32_t> Prompt(int64_t tokens, int64_t vocab) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < tokens; ++i) out.push_back(static_cast<int32_t>((i * i * 7 + 3 * i + 1) % vocab));
  return out;
}

// The logits of a prompt in two pieces, beside another one, and of one token after it; then its hidden states.
inline std::vector<float> Outputs(Runner& runner) {
  const std::vector<int32_t> tokens = Prompt(40, runner.info().config.vocab), table = {2, 0, 1};
  const std::vector<int32_t> other = Prompt(7, runner.info().config.vocab), other_table = {3};
  std::vector<float> all;
  for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, 23}, {23, 16}, {39, 1}}) {
    const Slice slices[] = {
        {.sequence = 1,
         .tokens = std::span(tokens).subspan(begin, count),
         .position = static_cast<int64_t>(begin),
         .block_table = table,
         .rows = Slice::Rows::kAll,
         .prompt_length = 39,
         .keeps_hidden = true},
        {.sequence = 2, .tokens = other, .block_table = other_table, .rows = Slice::Rows::kLast}};
    const Status queued = runner.Queue(std::span(slices).first(begin == 0 ? 2 : 1));
    EXPECT_TRUE(queued) << queued.error().message();
    const auto output = runner.Take();
    if (!output) {
      ADD_FAILURE() << output.error().message();
      return {};
    }
    all.insert(all.end(), output->logits.begin(), output->logits.end());
    all.insert(all.end(), output->hidden.begin(), output->hidden.end());
  }
  return all;
}

inline std::vector<int32_t> Answers(const EngineOptions& options, const SamplingParams& sampling,
                                    int64_t prompts) {
  auto engine = Engine::Load(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message();
    return {};
  }
  std::vector<std::vector<int32_t>> texts(static_cast<size_t>(prompts));
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < prompts; ++i) {
    Request request;
    request.prompt = Prompt(20 + 7 * i, (*engine)->info().vocab);
    request.max_tokens = 60;
    request.sampling = sampling;
    const auto id = (*engine)->Submit(request);
    EXPECT_TRUE(id);
    ids.push_back(*id);
  }
  while ((*engine)->HasWork())
    for (const TokenEvent& event : (*engine)->Step()) {
      EXPECT_EQ(event.error, "");
      const auto at = std::find(ids.begin(), ids.end(), event.request) - ids.begin();
      texts[static_cast<size_t>(at)].push_back(event.token);
    }
  if (options.kv_memory.bytes > 0) {
    EXPECT_GT((*engine)->stats().swaps + (*engine)->stats().recomputations, 0);
  }
  std::vector<int32_t> all;
  for (const auto& text : texts) all.insert(all.end(), text.begin(), text.end());
  return all;
}

}  // namespace celer::placed
