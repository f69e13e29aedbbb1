#include <utility>

#include "celer/text.h"
#include "engine/sample/stop_matcher.h"
#include "engine/text/prompter.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {

struct TextStream::Impl {
  Impl(const Prompter& from, std::vector<std::string> stop)
      : prompter(from), detokenizer(GetTokenizer(from)), stops(std::move(stop)) {}

  Prompter prompter;  // keeps the tokenizer
  Detokenizer detokenizer;
  StopMatcher stops;
  FinishReason finish = FinishReason::kNone;
  bool wants_cancel = false;
};

TextStream::TextStream(const Prompter& prompter, std::vector<std::string> stop)
    : impl_(std::make_unique<Impl>(prompter, std::move(stop))) {}
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;

FinishReason TextStream::finish() const {
  return impl_->finish;
}
bool TextStream::wants_cancel() const {
  return impl_->wants_cancel;
}

TextDelta TextStream::Push(TokenEvent event) {
  Impl& s = *impl_;
  TextDelta delta;
  if (s.finish != FinishReason::kNone) {
    delta.finish = s.finish;
    return delta;
  }
  s.finish = event.finish;
  delta.error = event.error;
  const bool has_token = event.token != TokenEvent::kNoToken;
  // The token that ends a turn is no text.
  if (has_token && event.finish != FinishReason::kStop)
    delta.text = s.stops.Push(s.detokenizer.Push(event.token));
  if (has_token) delta.token = std::move(event);
  if (s.finish != FinishReason::kNone && !s.stops.stopped()) {
    // After a cancellation the buffered text is discarded; else it is part of the answer.
    if (s.finish != FinishReason::kCancelled) {
      delta.text += s.stops.Push(s.detokenizer.Finish());
      if (!s.stops.stopped()) delta.text += s.stops.Finish();
    }
  }
  if (s.stops.stopped()) {
    s.wants_cancel = s.finish == FinishReason::kNone;
    s.finish = FinishReason::kStop;
  }
  delta.finish = s.finish;
  return delta;
}

}  // namespace celer
