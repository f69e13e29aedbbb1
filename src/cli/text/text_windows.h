// A text cut into windows of tokens, which celer ppl and celer eval score one by one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "celer/text.h"

namespace celer::cli {

// llama.cpp's method: windows side by side; the second half of each is scored, and each begins with BOS if
// the vocabulary has it. With a stride windows overlap, and each scores the tokens that the one before did
// not.
class TextWindows {
 public:
  // `name`: of the text, for the error if it is too short. `at_most`: windows, 0 for all there are.
  static Result<TextWindows> Cut(const Prompter& prompter, const std::string& text, const std::string& name,
                                 int64_t window, int64_t stride, int64_t at_most);

  int64_t count() const { return count_; }
  std::vector<int32_t> Tokens(int64_t index) const;
  int64_t First(int64_t index) const;  // the first of them that is scored

 private:
  std::vector<int32_t> tokens_;
  std::optional<int32_t> bos_;  // replaces the first token of each window
  int64_t window_ = 0, stride_ = 0, count_ = 0;
};

}  // namespace celer::cli
