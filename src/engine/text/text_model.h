// An engine and the Prompter that fits it, for one user at a time: text in, text out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "celer/engine.h"
#include "celer/text.h"

namespace celer {

struct TextModelOptions {
  EngineOptions engine;
  std::string tokenizer;      // as in PrompterOptions
  std::string chat_template;  // likewise
};

Result<Prompter> LoadPrompter(const TextModelOptions& options);

struct TextModel {
  static Result<TextModel> Load(const TextModelOptions& options);

  std::unique_ptr<Engine> engine;
  Prompter prompter;
};

// A prompt that is tokens already, and how to go on from it.
struct TextRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 256;
  std::vector<std::string> stop;  // strings that end the answer and are not part of it
  bool ignore_end = false;        // go on past the model's own end of turn
};

struct TextResult {
  std::string text;
  std::vector<TokenEvent> tokens;
  FinishReason finish = FinishReason::kNone;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;   // of the prompt, found in the KV
  double prefill_seconds = 0;  // to the first token
  double decode_seconds = 0;   // from the first token to the last
  int64_t steps = 0;  // of the engine, from the first token on: fewer than tokens if drafts are accepted
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // of speculative decoding

  int64_t decode_steps() const { return static_cast<int64_t>(tokens.size()) - 1; }
};

// One answer from an engine that has no other requests: it steps the engine itself and would consume their
// events. To share an engine, use an EngineThread and a TextStream. Streams text to on_text, which returns
// false to stop. So does `go_on`, which is called before every step, also those of the prefill.
Result<TextResult> Generate(TextModel& model, const TextRequest& request,
                            const std::function<bool(std::string_view)>& on_text,
                            const std::function<bool()>& go_on = {});

}  // namespace celer
