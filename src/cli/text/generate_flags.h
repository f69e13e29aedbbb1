// The flags that run, chat and ppl share: the model, how it is loaded, how tokens are chosen.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/shared/command.h"
#include "engine/text/text_model.h"

namespace celer::cli {

struct ModelFlags {
  std::string model;
  TextModelOptions options;
  int verbose = 0;

  void AddTo(CLI::App& app);
  void AddChatTo(CLI::App& app);  // what only matters where the chat template is used
  Result<TextModel> Load();       // says what was loaded with -v
};

// Only what was given on the command line overrides the model's defaults.
struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p, typical_p, repetition_penalty, presence_penalty,
      frequency_penalty;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // "123=-5"
  int logprobs = -1;
  int64_t max_tokens = 256;
  std::vector<std::string> stop;

  void AddTo(CLI::App& app);
  Result<SamplingParams> Apply(const SamplingParams& defaults, int64_t vocab) const;
};

// Fills request with everything but the prompt.
Result<TextRequest> MakeRequest(const SamplingFlags& flags, const TextModel& model);

// How fast an answer came and how far that is from what this machine could do; nullopt where it was not
// measured yet.
struct Speed {
  double prefill_per_s = 0;
  double decode_per_s = 0;
  std::optional<double> decode_limit_per_s;  // weights and KV read once per token, at the measured bandwidth
  double read_bytes_per_s = 0;               // the bandwidth behind it
};
Speed MeasureSpeed(const TextResult& result, const Engine& engine);
std::string SpeedLine(const TextResult& result, const Engine& engine);
// In brackets on stderr, with `more` at its end.
void SaySpeed(const TextResult& result, const Engine& engine, std::string_view more = "");
// With `speculation`, the numbers of drafted and accepted tokens, also if they are 0.
nlohmann::ordered_json SpeedJson(const TextResult& result, const Engine& engine,
                                 const Speculation& speculation);
// For SaySpeed(): ", nothing was drafted" if speculation is on and that is so; else "".
std::string NoDraftNote(const TextResult& result, const Speculation& speculation);

}  // namespace celer::cli
