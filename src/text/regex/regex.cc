#include "text/regex/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/log.h"
#include "base/utf8.h"
#include "io/file/printable.h"

namespace celer {
namespace {

constexpr size_t kMaxPattern = 64 << 10;  // bytes; the longest in a known model has about 2,000
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimit = 64 << 10;  // KiB

std::string PcreMessage(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

void RegexBudget::MarkSpent() {
  if (!spent_)
    log::WarningOnce(
        "tokenizer: a regular expression of the pre-tokenizer ran into its limits; the rest of this text is "
        "split "
        "less finely");
  spent_ = true;
}

namespace {

// What a match needs besides the pattern. One per thread, so that one Regex serves many threads; a text is
// cut into thousands of pieces, for which allocating it each time would cost more than matching.
struct Scratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);

  Scratch() {
    if (!context) return;
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimit);
  }
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  bool ok() const { return data && context; }
};
thread_local Scratch scratch;

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPattern)
    return Error::Unsupported("a regular expression of ", pattern.size(), " bytes; at most ", kMaxPattern,
                              " are allowed");
  if (!utf8::IsValid(pattern)) return Error::Corrupt("a regular expression that is not valid UTF-8");
  CELER_ASSIGN(std::string translated, TranslateRegex(pattern));

  auto code = std::make_unique<Code>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_compile_context* compile = pcre2_compile_context_create(nullptr);
  if (!compile) return Error::OutOfMemory("out of memory while compiling a regular expression");
  pcre2_set_newline(compile, PCRE2_NEWLINE_LF);
  code->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT | PCRE2_NEVER_BACKSLASH_C, &error,
      &offset, compile);
  pcre2_compile_context_free(compile);
  if (!code->code)
    return Error::Corrupt("the regular expression '", Printable(pattern, 200),
                          "' is not understood: ", PcreMessage(error));
  // No JIT (a system that forbids writable code, say) is only slower.
  (void)pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

void Regex::FindAll(std::string_view text, RegexBudget& budget, Matches& out) const {
  if (budget.Spent()) return budget.MarkSpent();
  if (!scratch.ok()) return budget.MarkSpent();
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto next_start = [&](size_t i) {
    return i < text.size() ? i + utf8::Decode(text.substr(i)).length : i + 1;
  };
  size_t start = 0;
  size_t last_end = SIZE_MAX;
  // PCRE2's match limit bounds the backtracking of one starting position; a window bounds how many positions
  // are tried between two looks at the clock.
  size_t window = 256;
  bool interpret = false;
  while (start <= text.size()) {
    const size_t limit = std::min(text.size(), start + window);
    pcre2_set_offset_limit(scratch.context, limit);
    const auto before = RegexBudget::Clock::now();
    int found =
        pcre2_match(code_->code, subject, text.size(), start,
                    PCRE2_NO_UTF_CHECK | (interpret ? PCRE2_NO_JIT : 0), scratch.data, scratch.context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && !interpret) {
      interpret = true;  // the interpreter keeps its stack on the heap
      continue;
    }
    interpret = false;
    if (found == PCRE2_ERROR_NOMATCH) {
      if (limit >= text.size()) return;
      start = limit;
      while (start < text.size() && utf8::IsContinuation(text[start])) ++start;
      const auto now = RegexBudget::Clock::now();
      const bool quick = now - before < std::chrono::microseconds(200);
      window = quick ? std::min<size_t>(window * 2, 1 << 16) : std::max<size_t>(window / 4, 16);
      if (budget.Spent()) return budget.MarkSpent();
      continue;
    }
    if (found < 0) return budget.MarkSpent();
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.data);
    // \K can report a start before ours, or after the end.
    const size_t begin = std::max<size_t>(ends[0], last_end == SIZE_MAX ? 0 : last_end), end = ends[1];
    if (begin >= end && end == last_end) {
      start = next_start(start);
      continue;
    }
    if (begin > end) return budget.MarkSpent();
    out.emplace_back(begin, end);
    start = last_end = end;
    if (out.size() % 1024 == 0 && budget.Spent()) return budget.MarkSpent();
  }
}

bool Regex::MatchesStart(std::string_view text) const {
  if (!scratch.ok()) return false;
  pcre2_set_offset_limit(scratch.context, text.size());
  return pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                     PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, scratch.data, scratch.context) > 0;
}

std::string EscapeRegex(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\.+*?()|[]{}^$#&-~").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace celer
