// The answers to a batch's line: the events of its requests, gathered into the JSON that is written.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "celer/text.h"
#include "cli/batch/body.h"

namespace celer::cli {

class BatchAnswer {
 public:
  BatchAnswer(BodyKind kind, const BatchBody& body, const Prompter& prompter);

  void Push(size_t request, TokenEvent event);
  // All answers of this request are complete while the engine goes on: cancel it.
  bool WantsCancel(size_t request) const;
  bool done() const { return open_ == 0; }  // the last event of every request is there
  // With done(). How it ended where it did not end well: kCancelled, kRefused, kError; else kNone.
  FinishReason failure() const { return failure_; }
  const std::string& error() const { return error_; }  // with kRefused and kError

  // With done() and without failure().
  nlohmann::ordered_json Body(const std::string& id, const std::string& model) const;

  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t new_tokens() const { return new_tokens_; }

 private:
  struct Choice {
    explicit Choice(const Prompter& prompter, const std::vector<std::string>& stop)
        : stream(prompter, stop) {}
    TextStream stream;
    std::string text;
    FinishReason finish = FinishReason::kNone;
    std::vector<TokenEvent> tokens;     // with logprobs only
    std::vector<int64_t> text_offsets;  // of each of them, in code points
    int64_t characters = 0;
  };
  struct Part {  // what one request gives
    std::vector<Choice> choices;
    std::vector<int32_t> prompt;  // with prompt_logprobs only
    std::vector<TokenEvent::PromptToken> prompt_logprobs;
    bool last = false;
  };

  nlohmann::ordered_json ChatLogprobs(const Choice& choice) const;
  nlohmann::ordered_json CompletionLogprobs(const Choice& choice) const;
  nlohmann::ordered_json PromptLogprobs(const Part& part) const;
  nlohmann::ordered_json ChoiceJson(const Part& part, const Choice& choice) const;

  BodyKind kind_;
  Prompter prompter_;
  std::vector<std::string> stop_;
  size_t answers_;  // that each request gives
  bool logprobs_;
  std::vector<Part> parts_;
  size_t open_;
  FinishReason failure_ = FinishReason::kNone;
  std::string error_;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, new_tokens_ = 0;
};

}  // namespace celer::cli
