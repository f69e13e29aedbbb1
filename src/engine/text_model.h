// An engine with its tokenizer, chat template and the defaults that the model's files give: text in, text
// out.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "celer/engine.h"
#include "core/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace celer {

struct TextModelOptions {
  EngineOptions engine;
  std::string tokenizer;      // a file or folder; "" = beside the model or inside it
  std::string chat_template;  // a file; "" = the model's own
};

// A prompt that is tokens already, and how to go on from it.
struct TextRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 256;
  std::vector<std::string> stop;  // strings that end the answer and are not part of it
  bool ignore_end = false;        // go on past the model's own end of turn
  bool keep = false;
  std::optional<int64_t> continue_from;
};

struct TextResult {
  int64_t request = 0;  // for continue_from, if it was kept
  std::string text;
  std::vector<TokenEvent> tokens;
  FinishReason finish = FinishReason::kNone;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;   // of the prompt, found in the KV
  double prefill_seconds = 0;  // to the first token
  double decode_seconds = 0;   // from the first token to the last

  int64_t decode_steps() const { return static_cast<int64_t>(tokens.size()) - 1; }
};

class TextModel {
 public:
  static Result<TextModel> Load(const TextModelOptions& options);

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  bool has_chat_template() const { return template_.has_value(); }
  // From generation_config.json where there is one, else greedy. `defaults_from` says which, for people.
  const SamplingParams& default_sampling() const { return sampling_; }
  const std::string& defaults_from() const { return defaults_from_; }
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }

  std::vector<int32_t> EncodeText(std::string_view text) const;
  // The conversation through the chat template. Special-token strings inside a message's content stay text:
  // only the template's own words become control tokens.
  Result<std::vector<int32_t>> EncodeChat(const nlohmann::ordered_json& messages,
                                          const nlohmann::ordered_json& tools,
                                          bool add_generation_prompt = true) const;

  // Streams text to on_text, which returns false to stop. Whole code points, and nothing of a stop string.
  Result<TextResult> Generate(const TextRequest& request,
                              const std::function<bool(std::string_view)>& on_text);

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  SamplingParams sampling_;
  std::string defaults_from_;
  std::vector<int32_t> end_tokens_;
  std::vector<std::string> special_strings_;  // longest first
};

}  // namespace celer
