// Detokenizes the events of one answer, as TextStream (celer/text.h) does, with the options of the API.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "celer/text.h"
#include "engine/sample/stop_matcher.h"
#include "text/tokenizer/tokenizer.h"

namespace celer::server {

struct AnswerTextOptions {
  std::vector<std::string> stop = {};
  bool include_stop = false;  // the string or token that ends the answer is part of it
  bool skip_special = true;   // control tokens are not
  int64_t min_tokens = 0;     // before that many, stop strings are ignored
};

class AnswerText {
 public:
  AnswerText(const Prompter& prompter, AnswerTextOptions options);

  // What the event adds. Whole code points.
  std::string Push(const TokenEvent& event);

  FinishReason finish() const { return finish_; }
  bool wants_cancel() const { return wants_cancel_; }  // a stop string was found while the engine goes on
  // What ended it: the string, or the token. None for the model's own end.
  const std::string& stop_string() const { return stops_.found(); }

 private:
  Prompter prompter_;  // keeps the tokenizer
  AnswerTextOptions options_;
  Detokenizer detokenizer_;
  StopMatcher stops_;
  FinishReason finish_ = FinishReason::kNone;
  int64_t tokens_ = 0;
  bool wants_cancel_ = false;
};

}  // namespace celer::server
