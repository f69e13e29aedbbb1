#include "cli/text/text_windows.h"

#include <algorithm>

namespace celer::cli {

Result<TextWindows> TextWindows::Cut(const Prompter& prompter, const std::string& text,
                                     const std::string& name, int64_t window, int64_t stride,
                                     int64_t at_most) {
  TextWindows out;
  out.tokens_ = prompter.EncodeText(text);
  out.window_ = window;
  out.stride_ = stride;
  const auto tokens = static_cast<int64_t>(out.tokens_.size());
  if (tokens < window)
    return Error::Invalid(name, ": ", tokens, " tokens are fewer than one window of ", window,
                          "; give a longer text or a smaller --window");
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

}  // namespace celer::cli
