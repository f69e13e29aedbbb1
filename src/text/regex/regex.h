// Regular expressions of tokenizer files. They are written for Oniguruma (Ruby syntax, Unicode 16), which the
// Hugging Face package uses; here they are translated for PCRE2 and run with bounds, because the file and the
// text may both be hostile.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace celer {

// Says when one Encode has spent too long in regular expressions.
class RegexBudget {
 public:
  using Clock = std::chrono::steady_clock;
  explicit RegexBudget(size_t text_bytes)
      : deadline_(Clock::now() + std::chrono::seconds(2) + std::chrono::microseconds(text_bytes)) {}
  bool Spent() const { return spent_ || Clock::now() > deadline_; }
  void MarkSpent();  // warns, the first time

 private:
  Clock::time_point deadline_;
  bool spent_ = false;
};

class Regex {
 public:
  static Result<Regex> Compile(std::string_view pattern);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // All matches from left to right as [begin, end), empty ones too where the previous match does not touch
  // them. `text` is valid UTF-8. When the budget or PCRE2's backtracking limits are spent, the matches so far
  // are given and the rest of the text counts as not matching: a poorer tokenization, never a hang.
  using Matches = std::vector<std::pair<size_t, size_t>>;
  void FindAll(std::string_view text, RegexBudget& budget, Matches& out) const;

  // Does a match start at the first byte?
  bool MatchesStart(std::string_view text) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// Rust's \w, which some steps of the Hugging Face package use whatever the file says.
inline constexpr std::string_view kRustWordClass =
    R"([\p{Alphabetic}\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}])";

// The PCRE2 form of an Oniguruma pattern; exposed for tests.
Result<std::string> TranslateRegex(std::string_view pattern);

// A pattern that matches `text` itself.
std::string EscapeRegex(std::string_view text);

}  // namespace celer
