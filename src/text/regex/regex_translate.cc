// Oniguruma's dialect to PCRE2's. Both read most patterns alike; what differs, and matters for tokenizers:
//   \s \w \d \b \p{L} ...  the sets of characters: written out, with what Unicode 15 and 16 added
//   \h \uHHHH              a hexadecimal digit; a code point
//   x{1,3}+                a repeated repetition, not a possessive one
//   (?m:...)               the dot matches a newline
//   [a[bc]]                a union
#include <cctype>
#include <optional>
#include <vector>

#include "base/utf8.h"
#include "text/regex/regex.h"
#include "text/unicode/unicode_tables.h"

namespace celer {
namespace {

// Contents of a class, to stand between [ and ].
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kHex = "0-9a-fA-F";

std::string CategorySet(std::string_view category) {  // "L" or "Lu"
  std::string out = "\\p{" + std::string(category) + "}";
  for (const unicode::CharRange& entry : unicode::BuiltInTables().new_categories) {
    const char letters[] = {static_cast<char>(entry.value), static_cast<char>(entry.value >> 8)};
    if (!std::string_view(letters, 2).starts_with(category)) continue;
    char buffer[40];
    if (entry.first == entry.last)
      std::snprintf(buffer, sizeof buffer, "\\x{%x}", entry.first);
    else
      std::snprintf(buffer, sizeof buffer, "\\x{%x}-\\x{%x}", entry.first, entry.last);
    out += buffer;
  }
  return out;
}

std::string WordSet() {
  // Oniguruma counts six numeric characters of Latin-1 as letters of words, but not their like elsewhere.
  return R"(\p{Alphabetic}\xb2\xb3\xb9\xbc-\xbe)" + CategorySet("L") + CategorySet("M") + CategorySet("Nd") +
         CategorySet("Pc");
}

bool IsGeneralCategory(std::string_view name) {
  constexpr std::string_view kMajor = "LMNPSZC";
  if (name.empty() || name.size() > 2 || kMajor.find(name[0]) == std::string_view::npos) return false;
  return name.size() == 1 || std::islower(static_cast<unsigned char>(name[1]));
}

class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  Result<std::string> Run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        BeginAtom();
        CELER_RETURN_IF_ERROR(Escape(false));
      } else if (c == '[') {
        BeginAtom();
        CELER_RETURN_IF_ERROR(Class());
      } else if (c == '(') {
        groups_.push_back(out_.size());
        Group();
      } else if (c == ')') {
        out_ += c;
        ++at_;
        if (!groups_.empty()) {
          atom_ = groups_.back();
          groups_.pop_back();
        }
      } else if (c == '{' && Repetition()) {
      } else {
        if (std::string_view("*+?|^$").find(c) == std::string_view::npos) BeginAtom();
        const size_t length = utf8::Decode(in_.substr(at_)).length;
        out_ += in_.substr(at_, length);
        at_ += length;
      }
    }
    return std::move(out_);
  }

 private:
  void BeginAtom() { atom_ = out_.size(); }

  // "(" and what belongs to it, up to the first thing that is matched.
  void Group() {
    out_ += '(';
    ++at_;
    if (at_ >= in_.size() || in_[at_] != '?') return;
    size_t end = at_ + 1;
    while (end < in_.size() && std::string_view("imx-").find(in_[end]) != std::string_view::npos) ++end;
    if (end == at_ + 1 || end >= in_.size() || (in_[end] != ':' && in_[end] != ')')) {
      // (?: (?= (?! (?> (?<= (?<! (?<name> and the like are the same in both.
      return;
    }
    for (; at_ < end; ++at_) out_ += in_[at_] == 'm' ? 's' : in_[at_];
  }

  // {n}, {n,}, {n,m}, {,m} and what follows; false when it is only a brace.
  bool Repetition() {
    size_t i = at_ + 1;
    const auto digits = [&] {
      const size_t begin = i;
      while (i < in_.size() && std::isdigit(static_cast<unsigned char>(in_[i]))) ++i;
      return in_.substr(begin, i - begin);
    };
    const std::string_view low = digits();
    std::string body(low.empty() ? "0" : low);
    if (i < in_.size() && in_[i] == ',') {
      ++i;
      body += ',';
      const std::string_view high = digits();
      if (low.empty() && high.empty()) return false;
      body += high;
    } else if (low.empty()) {
      return false;
    }
    if (i >= in_.size() || in_[i] != '}') return false;
    at_ = i + 1;
    out_ += '{' + body + '}';
    if (at_ < in_.size() && in_[at_] == '+') {
      out_.insert(atom_, "(?:");
      out_ += ")+";
      ++at_;
    }
    return true;
  }

  void Emit(std::string_view set, bool negated, bool in_class) {
    if (in_class) {
      out_ += set;
    } else {
      out_ += negated ? "[^" : "[";
      out_ += set;
      out_ += ']';
    }
  }

  Status Escape(bool in_class) {
    if (at_ + 1 >= in_.size()) return Error::Corrupt("the regular expression ends with a backslash");
    const char c = in_[at_ + 1];
    at_ += 2;
    switch (c) {
      case 's':
        Emit(kSpace, false, in_class);
        return {};
      case 'S':
        in_class ? Emit(kNotSpace, false, true) : Emit(kSpace, true, false);
        return {};
      case 'h':
        Emit(kHex, false, in_class);
        return {};
      case 'w':
        Emit(WordSet(), false, in_class);
        return {};
      case 'd':
        Emit(CategorySet("Nd"), false, in_class);
        return {};
      case 'W':
      case 'D':
      case 'H':
        if (in_class) {  // no set to write out; PCRE2's own is the nearest
          if (c == 'H') return Error::Unsupported("a regular expression with \\H inside a class");
          out_ += '\\';
          out_ += c;
        } else {
          Emit(c == 'W' ? WordSet() : c == 'D' ? CategorySet("Nd") : std::string(kHex), true, false);
        }
        return {};
      case 'b':
      case 'B':
        if (in_class) {
          out_ += "\\b";
        } else {
          const std::string word = "[" + WordSet() + "]";
          out_ += c == 'b' ? "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))"
                           : "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
        }
        return {};
      case 'p':
      case 'P':
        return Property(c == 'P', in_class);
      case 'u':
        if (at_ + 4 <= in_.size()) {
          out_ += "\\x{" + std::string(in_.substr(at_, 4)) + "}";
          at_ += 4;
          return {};
        }
        return Error::Corrupt("the regular expression has \\u without four digits");
      default:
        break;
    }
    out_ += '\\';
    at_ -= 1;
    const size_t length = utf8::Decode(in_.substr(at_)).length;
    out_ += in_.substr(at_, length);
    at_ += length;
    return {};
  }

  Status Property(bool negated, bool in_class) {
    const size_t close = in_.find('}', at_);
    if (at_ >= in_.size() || in_[at_] != '{' || close == std::string_view::npos) {
      out_ += negated ? "\\P" : "\\p";
      return {};
    }
    std::string_view name = in_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (IsGeneralCategory(name) && !(negated && in_class)) {
      Emit(CategorySet(name), negated, in_class);
    } else {
      out_ += negated ? "\\P{" : "\\p{";
      out_ += name;
      out_ += '}';
    }
    return {};
  }

  Status Class() {
    out_ += '[';
    ++at_;
    if (at_ < in_.size() && in_[at_] == '^') {
      out_ += '^';
      ++at_;
    }
    bool first = true;
    int depth = 1;
    for (; at_ < in_.size(); first = false) {
      const char c = in_[at_];
      if (c == '\\') {
        CELER_RETURN_IF_ERROR(Escape(true));
      } else if (c == ']') {
        ++at_;
        if (first) {
          out_ += "\\]";
          continue;
        }
        if (--depth == 0) {
          out_ += ']';
          return {};
        }
      } else if (c == '[') {
        const size_t posix_end = in_.find(":]", at_);
        if (at_ + 1 < in_.size() && in_[at_ + 1] == ':' && posix_end != std::string_view::npos) {
          out_ += in_.substr(at_, posix_end + 2 - at_);
          at_ = posix_end + 2;
        } else if (at_ + 1 < in_.size() && in_[at_ + 1] == '^') {
          return Error::Unsupported("a regular expression with a negated class inside a class");
        } else {
          ++depth;  // a union: its members simply join the outer class
          ++at_;
        }
      } else if (c == '&' && in_.substr(at_).starts_with("&&")) {
        return Error::Unsupported("a regular expression with an intersection (&&) of classes");
      } else {
        const size_t length = utf8::Decode(in_.substr(at_)).length;
        out_ += in_.substr(at_, length);
        at_ += length;
      }
    }
    return Error::Corrupt("the regular expression has a class without ]");
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;             // where in out_ the last atom began
  std::vector<size_t> groups_;  // where the open groups began
};

}  // namespace

Result<std::string> TranslateRegex(std::string_view pattern) {
  // Anchored at the end, this one would be tried at every blank of a long run of blanks: quadratic. If it
  // fails at the first of them, it fails at all.
  if (pattern == "\\s+$") return TranslateRegex("(?<!\\s)\\s+$");
  return Translator(pattern).Run();
}

}  // namespace celer
