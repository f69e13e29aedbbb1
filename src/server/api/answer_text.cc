#include "server/api/answer_text.h"

#include <utility>

#include "engine/text/prompter.h"

namespace celer::server {

AnswerText::AnswerText(const Prompter& prompter, AnswerTextOptions options)
    : prompter_(prompter),
      options_(std::move(options)),
      detokenizer_(GetTokenizer(prompter_), options_.skip_special),
      stops_(options_.stop) {}

std::string AnswerText::Push(const TokenEvent& event) {
  if (finish_ != FinishReason::kNone) return "";
  finish_ = event.finish;
  std::string text;
  const auto take = [&](const std::string& more) {
    if (tokens_ <= options_.min_tokens && options_.min_tokens > 0)
      text += more;
    else
      text += stops_.Push(more);
  };
  if (event.token != TokenEvent::kNoToken) {
    ++tokens_;
    if (event.finish != FinishReason::kStop || options_.include_stop) take(detokenizer_.Push(event.token));
  }
  // After a cancellation the buffered text is discarded; else it is part of the answer.
  if (finish_ != FinishReason::kNone && finish_ != FinishReason::kCancelled && !stops_.stopped()) {
    take(detokenizer_.Finish());
    if (!stops_.stopped()) text += stops_.Finish();
  }
  if (stops_.stopped()) {
    if (options_.include_stop) text += stops_.found();
    wants_cancel_ = finish_ == FinishReason::kNone;
    finish_ = FinishReason::kStop;
  }
  return text;
}

}  // namespace celer::server
