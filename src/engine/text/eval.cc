#include "celer/eval.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/result.h"

namespace celer {

Result<TextWindows> TextWindows::Cut(const Prompter& prompter, const std::string& text,
                                     const std::string& name, int64_t window, int64_t stride,
                                     int64_t at_most) {
  if (window < 4) return Error::Invalid("window is ", window, ", expected 4 or more");
  if (stride < 0 || stride >= window)
    return Error::Invalid("stride is ", stride, ", expected 0 to ", window - 1);
  TextWindows out;
  out.tokens_ = prompter.EncodeText(text);
  out.window_ = window;
  out.stride_ = stride;
  const auto tokens = static_cast<int64_t>(out.tokens_.size());
  if (tokens < window)
    return Error::Invalid(name, ": ", tokens, " tokens are fewer than one window of ", window,
                          "; give a longer text or a smaller window");
  if (const auto bos = prompter.bos(); stride == 0 && bos && out.tokens_[0] == *bos) out.bos_ = bos;
  out.count_ = stride > 0 ? (tokens - window) / stride + 1 : tokens / window;
  if (at_most > 0) out.count_ = std::min(out.count_, at_most);
  return out;
}

std::vector<int32_t> TextWindows::Tokens(int64_t index) const {
  const auto begin = tokens_.begin() + index * (stride_ > 0 ? stride_ : window_);
  std::vector<int32_t> out(begin, begin + window_);
  if (bos_) out[0] = *bos_;
  return out;
}

int64_t TextWindows::First(int64_t index) const {
  if (stride_ == 0) return window_ / 2 + 1;
  return index == 0 ? 1 : window_ - stride_;
}

void Perplexity::Add(std::span<const float> logprobs) {
  for (const float logprob : logprobs) {
    sum_ -= logprob;
    squares_ += double{logprob} * logprob;
  }
  tokens_ += std::ssize(logprobs);
  ++windows_;
}

double Perplexity::value() const {
  if (tokens_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return std::exp(sum_ / static_cast<double>(tokens_));
}

double Perplexity::error() const {
  const auto n = static_cast<double>(tokens_);
  const double variance = squares_ / n - (sum_ / n) * (sum_ / n);
  return n > 1 && variance > 0 ? value() * std::sqrt(variance / (n - 1)) : 0;
}

Result<Perplexity> MeasurePerplexity(Engine& engine, const Prompter& prompter, const std::string& text,
                                     const PerplexityOptions& options) {
  CELER_ASSIGN(const TextWindows cut, TextWindows::Cut(prompter, text, options.name, options.window,
                                                       options.stride, options.at_most));
  Perplexity out;
  for (int64_t i = 0; i < cut.count(); ++i) {
    CELER_ASSIGN(const std::vector<float> logprobs, engine.Score(cut.Tokens(i), cut.First(i)));
    out.Add(logprobs);
    if (options.progress && !options.progress(out, cut.count())) break;
  }
  return out;
}

}  // namespace celer
