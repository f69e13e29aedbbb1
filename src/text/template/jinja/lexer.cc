#include "text/template/jinja/lexer.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/utf8.h"
#include "text/template/jinja/unicode.h"
#include "text/unicode/hex_digit.h"

namespace celer::jinja {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// \r\n and \r become \n; one newline at the very end is dropped.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : owned_(NormalizeNewlines(source)), src_(owned_) {}

  std::vector<Token> Run() {
    while (pos_ < src_.size()) LexText();
    Emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Fail(const std::string& message) const { throw TemplateError(message, line_); }

  Token& Emit(TokenKind kind, std::string text) {
    Token& token = tokens_.emplace_back();
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    return token;
  }

  bool At(std::string_view s) const { return src_.substr(pos_).starts_with(s); }

  void Advance(size_t end) {
    line_ += static_cast<int>(std::count(src_.begin() + static_cast<int64_t>(pos_),
                                         src_.begin() + static_cast<int64_t>(end), '\n'));
    pos_ = end;
  }

  size_t SkipSpace(size_t at) const {
    size_t n = 0;
    while (at < src_.size() && IsSpace(DecodeAt(src_, at, &n))) at += n;
    return at;
  }

  // If a `raw` or `endraw` tag with this name starts at `at`, the offset of what follows the name (and its
  // spaces).
  size_t MatchRawTag(size_t at, std::string_view name) const {
    at += 2;
    if (at < src_.size() && (src_[at] == '-' || src_[at] == '+')) ++at;
    at = SkipSpace(at);
    if (!src_.substr(at).starts_with(name)) return std::string::npos;
    return SkipSpace(at + name.size());
  }

  // The text before a tag, cut as the tag's sign or lstrip_blocks asks.
  std::string_view CutBefore(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return Strip(text, StripSide::kRight);
    if (sign == '+' || is_variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t line_start = newline == std::string::npos ? 0 : newline + 1;
    if (line_start == 0 && !line_starting_) return text;
    const std::string_view tail = text.substr(line_start);
    if (!tail.empty() && Strip(tail, StripSide::kLeft).empty()) return text.substr(0, line_start);
    return text;
  }

  void EmitData(std::string_view text) {
    if (!text.empty()) Emit(TokenKind::kData, std::string(text));
  }

  // Offset after the end of a tag, when one is here: `-%}` eats all space after it, `%}` one newline, `+%}`
  // nothing.
  size_t MatchTagEnd(size_t at, std::string_view close, bool trim_newline) const {
    const std::string_view rest = src_.substr(at);
    if (rest.starts_with(close)) {
      at += close.size();
      return trim_newline && at < src_.size() && src_[at] == '\n' ? at + 1 : at;
    }
    if (!rest.empty() && rest.substr(1).starts_with(close)) {
      if (rest[0] == '-') return SkipSpace(at + 1 + close.size());
      if (rest[0] == '+' && trim_newline) return at + 1 + close.size();
    }
    return std::string::npos;
  }

  void FinishTag(size_t end) {
    line_starting_ = end > 0 && src_[end - 1] == '\n';
    Advance(end);
  }

  void LexText() {
    size_t tag = pos_;
    while (true) {
      tag = src_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= src_.size()) {
        EmitData(src_.substr(pos_));
        Advance(src_.size());
        return;
      }
      const char c = src_[tag + 1];
      if (c == '%' || c == '{' || c == '#') break;
      ++tag;
    }
    const char type = src_[tag + 1];
    const char sign = tag + 2 < src_.size() ? src_[tag + 2] : ' ';
    const bool has_sign = sign == '-' || sign == '+';
    EmitData(CutBefore(src_.substr(pos_, tag - pos_), sign, type == '{'));
    Advance(tag);

    if (type == '%') {
      if (const size_t after = MatchRawTag(tag, "raw"); after != std::string::npos) {
        size_t end = std::string::npos;
        if (src_.substr(after).starts_with("%}")) end = after + 2;
        if (src_.substr(after).starts_with("-%}")) end = SkipSpace(after + 3);
        if (end != std::string::npos) {
          FinishTag(end);
          LexRaw();
          return;
        }
      }
    }
    pos_ = tag + 2 + (has_sign ? 1 : 0);
    if (type == '#') {
      LexComment();
    } else {
      Emit(type == '%' ? TokenKind::kBlockBegin : TokenKind::kVarBegin, "");
      LexTag(type == '%');
    }
  }

  void LexComment() {
    for (size_t at = pos_; at < src_.size(); ++at) {
      if (const size_t end = MatchTagEnd(at, "#}", true); end != std::string::npos) {
        FinishTag(end);
        return;
      }
    }
    Fail("a comment '{#' is not closed by '#}'");
  }

  void LexRaw() {
    for (size_t at = src_.find("{%", pos_); at != std::string::npos; at = src_.find("{%", at + 1)) {
      const size_t after = MatchRawTag(at, "endraw");
      if (after == std::string::npos) continue;
      const size_t end = MatchTagEnd(after, "%}", true);
      if (end == std::string::npos) continue;
      EmitData(CutBefore(src_.substr(pos_, at - pos_), at + 2 < src_.size() ? src_[at + 2] : ' ', false));
      FinishTag(end);
      return;
    }
    Fail("'{% raw %}' is not closed by '{% endraw %}'");
  }

  void LexTag(bool block) {
    const std::string_view close = block ? "%}" : "}}";
    std::string open_brackets;
    while (true) {
      if (pos_ >= src_.size())
        Fail(block ? "a tag '{%' is not closed by '%}'" : "an expression '{{' is not closed by '}}'");
      if (open_brackets.empty()) {
        if (const size_t end = MatchTagEnd(pos_, close, block); end != std::string::npos) {
          Emit(block ? TokenKind::kBlockEnd : TokenKind::kVarEnd, "");
          FinishTag(end);
          return;
        }
      }
      size_t n = 0;
      const uint32_t c = DecodeAt(src_, pos_, &n);
      if (IsSpace(c)) {
        Advance(pos_ + n);
      } else if (c < 0x80 && IsDigit(static_cast<char>(c))) {
        LexNumber();
      } else if (IsWord(c)) {
        LexName();
      } else if (c == '"' || c == '\'') {
        LexString(static_cast<char>(c));
      } else {
        LexOperator(open_brackets);
      }
    }
  }

  void LexName() {
    size_t end = pos_, n = 0;
    while (end < src_.size() && IsWord(DecodeAt(src_, end, &n))) end += n;
    Emit(TokenKind::kName, std::string(src_.substr(pos_, end - pos_)));
    pos_ = end;
  }

  // Digits with single underscores between them; the offset after the last digit.
  size_t Digits(size_t at) const {
    if (at >= src_.size() || !IsDigit(src_[at])) return at;
    while (at < src_.size() &&
           (IsDigit(src_[at]) || (src_[at] == '_' && at + 1 < src_.size() && IsDigit(src_[at + 1]))))
      ++at;
    return at;
  }

  void LexNumber() {
    const size_t whole = Digits(pos_);
    size_t end = whole;
    bool is_float = false;
    if (pos_ == 0 || src_[pos_ - 1] != '.') {  // `a.0.1` is two subscripts, not a fraction
      if (end < src_.size() && src_[end] == '.' && Digits(end + 1) > end + 1) {
        end = Digits(end + 1);
        is_float = true;
      }
      if (end < src_.size() && (src_[end] == 'e' || src_[end] == 'E')) {
        size_t exponent = end + 1;
        if (exponent < src_.size() && (src_[exponent] == '+' || src_[exponent] == '-')) ++exponent;
        if (Digits(exponent) > exponent) {
          end = Digits(exponent);
          is_float = true;
        }
      }
    }
    if (is_float) {
      std::string digits(src_.substr(pos_, end - pos_));
      std::erase(digits, '_');
      double number = 0;
      const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (parsed.ec != std::errc{}) Fail("the number " + digits + " is out of range");
      Emit(TokenKind::kFloat, digits).number = number;
      pos_ = end;
      return;
    }
    LexInteger(whole);
  }

  void LexInteger(size_t decimal_end) {
    int base = 10;
    size_t at = pos_, end = decimal_end;
    if (src_[pos_] == '0' && pos_ + 1 < src_.size()) {
      const char prefix = static_cast<char>(src_[pos_ + 1] | 0x20);
      const int wanted = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
      if (wanted != 10) {
        size_t scan = pos_ + 2;
        while (scan < src_.size() &&
               (src_[scan] == '_' || (HexDigit(src_[scan]) >= 0 && HexDigit(src_[scan]) < wanted)))
          ++scan;
        if (scan > pos_ + 2) {
          base = wanted;
          at = pos_ + 2;
          end = scan;
        }
      } else {
        for (size_t k = pos_; k < decimal_end; ++k)
          if (src_[k] != '0' && src_[k] != '_') Fail("a decimal number must not start with 0");
      }
    }
    Int value = 0;
    for (; at < end; ++at) {
      if (src_[at] == '_') continue;
      if (__builtin_mul_overflow(value, Int{base}, &value) ||
          __builtin_add_overflow(value, Int{HexDigit(src_[at])}, &value))
        Fail("the number " + std::string(src_.substr(pos_, end - pos_)) + " does not fit in 128 bits");
    }
    Emit(TokenKind::kInteger, std::string(src_.substr(pos_, end - pos_))).integer = value;
    pos_ = end;
  }

  // `digits` hexadecimal digits at `at`, as a code point.
  uint32_t HexEscape(size_t at, size_t digits, size_t limit) const {
    uint32_t c = 0;
    for (size_t k = 0; k < digits; ++k) {
      const int v = at + k < limit ? HexDigit(src_[at + k]) : -1;
      if (v < 0) Fail("a \\x, \\u or \\U escape has too few hexadecimal digits");
      c = c << 4 | static_cast<uint32_t>(v);
    }
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) Fail("a string escape names no character");
    return c;
  }

  void LexString(char quote) {
    size_t end = pos_ + 1;
    while (end < src_.size() && src_[end] != quote) end += src_[end] == '\\' ? 2 : 1;
    if (end >= src_.size()) Fail("a string is not closed");
    std::string out;
    for (size_t i = pos_ + 1; i < end;) {
      if (src_[i] != '\\') {
        out.push_back(src_[i++]);
        continue;
      }
      const char c = src_[i + 1];
      i += 2;
      switch (c) {
        case '\n':
          break;  // a continued line
        case '\\':
        case '\'':
        case '"':
          out.push_back(c);
          break;
        case 'a':
          out.push_back('\a');
          break;
        case 'b':
          out.push_back('\b');
          break;
        case 'f':
          out.push_back('\f');
          break;
        case 'n':
          out.push_back('\n');
          break;
        case 'r':
          out.push_back('\r');
          break;
        case 't':
          out.push_back('\t');
          break;
        case 'v':
          out.push_back('\v');
          break;
        case 'x':
        case 'u':
        case 'U': {
          const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
          utf8::Append(HexEscape(i, digits, end), out);
          i += digits;
          break;
        }
        case 'N':
          Fail("\\N{...} escapes are not supported");
        default:
          if (c >= '0' && c <= '7') {
            uint32_t value = static_cast<uint32_t>(c - '0');
            for (int k = 0; k < 2 && i < end && src_[i] >= '0' && src_[i] <= '7'; ++k)
              value = value << 3 | static_cast<uint32_t>(src_[i++] - '0');
            utf8::Append(value, out);
          } else {  // an unknown escape stands for itself
            out.push_back('\\');
            out.push_back(c);
          }
      }
    }
    Emit(TokenKind::kString, std::move(out));
    Advance(end + 1);
  }

  void LexOperator(std::string& open_brackets) {
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!At(op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') {
        open_brackets.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      } else if (c == ')' || c == ']' || c == '}') {
        if (open_brackets.empty() || open_brackets.back() != c) Fail("unexpected '" + std::string(op) + "'");
        open_brackets.pop_back();
      }
      Emit(TokenKind::kOperator, std::string(op));
      pos_ += op.size();
      return;
    }
    size_t n = 0;
    DecodeAt(src_, pos_, &n);
    Fail("unexpected character '" + std::string(src_.substr(pos_, n)) + "'");
  }

  const std::string owned_;
  const std::string_view src_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // nothing but the end of a line stands before pos_
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) {
  return Lexer(source).Run();
}

}  // namespace celer::jinja
