// Python's two formatting languages: 'text' % values, and the specification after the colon in '{:>8.3f}'.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"
#include "text/template/jinja/builtins.h"
#include "text/template/jinja/format.h"
#include "text/template/jinja/unicode.h"

namespace celer::jinja {
namespace {

constexpr int64_t kMaxPrecision = 500;

bool IsAsciiDigit(char c) {
  return c >= '0' && c <= '9';
}

std::string Printf(const char* format, int64_t precision, double value) {
  char buffer[1024];
  const int n = std::snprintf(buffer, sizeof buffer, format, static_cast<int>(precision), value);
  return std::string(buffer, static_cast<size_t>(std::clamp(n, 0, static_cast<int>(sizeof buffer) - 1)));
}

void StripTrailingZeros(std::string& text) {
  const size_t e = std::min(text.find('e'), text.size());
  if (text.find('.') >= e) return;
  size_t end = e;
  while (end > 0 && text[end - 1] == '0') --end;
  if (end > 0 && text[end - 1] == '.') --end;
  text.erase(end, e - end);
}

// float.__format__ without a type but with a precision: like g, but never without a fraction.
std::string GeneralWithFraction(double magnitude, int64_t precision) {
  const std::string rounded = Printf("%.*e", std::max<int64_t>(precision, 1) - 1, magnitude);
  const int exponent = std::stoi(rounded.substr(rounded.find('e') + 1));
  if (exponent < -4 || exponent >= precision - 1 + (precision == 0 ? 1 : 0)) {
    std::string text = rounded;
    StripTrailingZeros(text);
    return text;
  }
  std::string text = Printf("%.*f", std::max<int64_t>(precision - 1 - exponent, 0), magnitude);
  StripTrailingZeros(text);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string FloatDigits(double magnitude, const NumberStyle& style) {
  const bool upper = style.type == 'E' || style.type == 'F' || style.type == 'G';
  std::string text;
  if (std::isnan(magnitude) || std::isinf(magnitude)) {
    text = std::isnan(magnitude) ? "nan" : "inf";
    if (style.type == '%') text += '%';
  } else {
    const int64_t precision = style.precision < 0 ? 6 : style.precision;
    switch (style.type | 0x20) {
      case 'e':
        text = Printf(style.alternate ? "%#.*e" : "%.*e", precision, magnitude);
        break;
      case 'f':
        text = Printf(style.alternate ? "%#.*f" : "%.*f", precision, magnitude);
        break;
      case 'g':
      case 'n':
        text = Printf(style.alternate ? "%#.*g" : "%.*g", precision, magnitude);
        break;
      case '%' | 0x20:
        text = Printf("%.*f", precision, magnitude * 100) + "%";
        break;
      default:
        text = style.precision < 0 ? FloatRepr(magnitude) : GeneralWithFraction(magnitude, precision);
    }
  }
  if (upper)
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? c ^ 0x20 : c; });
  return text;
}

std::string IntDigits(unsigned __int128 magnitude, char type) {
  const unsigned base = type == 'b' ? 2 : type == 'o' ? 8 : (type | 0x20) == 'x' ? 16 : 10;
  const char* digits = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string text;
  do {
    text.push_back(digits[magnitude % base]);
    magnitude /= base;
  } while (magnitude != 0);
  std::reverse(text.begin(), text.end());
  return text;
}

std::string Group(const std::string& digits, char separator, size_t size) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % size == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out;
}

std::string Pad(const std::string& text, const NumberStyle& style, char default_align, size_t sign_size,
                Budget& budget) {
  const int64_t missing = style.width - CountCodePoints(text);
  if (missing <= 0) return text;
  budget.CheckString(missing * static_cast<int64_t>(style.fill.size()));
  const auto fill = [&](int64_t n) {
    std::string out;
    for (int64_t i = 0; i < n; ++i) out += style.fill;
    return out;
  };
  switch (style.align != 0 ? style.align : default_align) {
    case '<':
      return text + fill(missing);
    case '^':
      return fill(missing / 2) + text + fill(missing - missing / 2);
    case '=':
      return text.substr(0, sign_size) + fill(missing) + text.substr(sign_size);
    default:
      return fill(missing) + text;
  }
}

std::string FormatNumber(const Value& value, NumberStyle style, Budget& budget) {
  if (style.precision > kMaxPrecision) throw TemplateError("a format asks for more than 500 digits");
  budget.ChargeString(style.width);
  const bool as_int =
      value.IsIntegral() &&
      (style.type == 0 || std::string_view("bcdnoxX").find(style.type) != std::string_view::npos);
  if (!as_int && style.type != 0 && std::string_view("eEfFgGn%").find(style.type) == std::string_view::npos)
    throw TemplateError(std::string("unknown format '") + style.type + "' for a value of type " +
                        TypeName(value));
  std::string sign, digits, tail;
  bool negative = false;
  if (as_int) {
    if (style.precision >= 0) throw TemplateError("an integer format has no precision");
    negative = value.integer() < 0;
    const auto bits = static_cast<unsigned __int128>(value.integer());
    if (style.type == 'c') {
      if (value.integer() < 0 || value.integer() > 0x10ffff)
        throw TemplateError("a 'c' format needs a code point");
      utf8::Append(static_cast<char32_t>(value.integer()), digits);
      return Pad(digits, style, '<', 0, budget);
    }
    digits = IntDigits(negative ? -bits : bits, style.type);
    if (style.alternate && std::string_view("boxX").find(style.type) != std::string_view::npos &&
        style.type != 0)
      sign = std::string("0") + style.type;
  } else {
    const double d = value.AsDouble();
    negative = std::signbit(d) && !std::isnan(d);
    digits = FloatDigits(std::fabs(d), style);
    const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    tail = digits.substr(whole);
    digits.erase(whole);
  }
  sign = (negative ? "-" : style.sign == '+' ? "+" : style.sign == ' ' ? " " : "") + sign;
  if (style.grouping != 0) {
    const size_t size =
        std::string_view("boxX").find(style.type) != std::string_view::npos && style.type != 0 ? 4 : 3;
    if (style.fill == "0" && style.align == '=') {  // the padding zeros are grouped too
      while (static_cast<int64_t>(sign.size() + digits.size() +
                                  (digits.empty() ? 0 : (digits.size() - 1) / size) + tail.size()) <
             style.width)
        digits.insert(digits.begin(), '0');
    }
    digits = Group(digits, style.grouping, size);
  }
  return Pad(sign + digits + tail, style, '>', sign.size(), budget);
}

// Parses an unsigned number at `at`; -1 when there is none.
int64_t ParseCount(const std::string& text, size_t& at) {
  if (at >= text.size() || !IsAsciiDigit(text[at])) return -1;
  int64_t n = 0;
  while (at < text.size() && IsAsciiDigit(text[at])) {
    n = n * 10 + (text[at++] - '0');
    if (n > (int64_t{1} << 31)) throw TemplateError("a number in a format is too large");
  }
  return n;
}

NumberStyle ParseSpec(const std::string& spec) {
  NumberStyle style;
  size_t at = 0, n = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '=' || c == '^'; };
  if (!spec.empty()) DecodeAt(spec, 0, &n);
  if (n != 0 && n < spec.size() && is_align(spec[n])) {
    style.fill = spec.substr(0, n);
    style.align = spec[n];
    at = n + 1;
  } else if (!spec.empty() && is_align(spec[0])) {
    style.align = spec[at++];
  }
  const auto skip = [&](char c) { return at < spec.size() && spec[at] == c ? (++at, true) : false; };
  if (at < spec.size() && (spec[at] == '+' || spec[at] == '-' || spec[at] == ' ')) style.sign = spec[at++];
  style.alternate = skip('#');
  if (skip('0')) {
    if (style.align == 0) {
      style.fill = "0";
      style.align = '=';
    }
  }
  style.width = std::max<int64_t>(0, ParseCount(spec, at));
  if (skip(',')) {
    style.grouping = ',';
  } else if (skip('_')) {
    style.grouping = '_';
  }
  if (skip('.')) {
    style.precision = ParseCount(spec, at);
    if (style.precision < 0) throw TemplateError("a format has a '.' without a precision");
  }
  if (at < spec.size()) style.type = spec[at++];
  if (at != spec.size()) throw TemplateError("'" + spec + "' is not a format");
  return style;
}

std::string Truncate(const std::string& text, int64_t precision) {
  return precision < 0 ? text : text.substr(0, ByteOffset(text, precision));
}

// One run over a '%' format.
class Percent {
 public:
  Percent(const std::string& format, const Value& arguments, bool markup, Budget& budget)
      : format_(format), arguments_(arguments), markup_(markup), budget_(budget) {}

  std::string Run() {
    std::string out;
    while (at_ < format_.size()) {
      const size_t percent = std::min(format_.find('%', at_), format_.size());
      out.append(format_, at_, percent - at_);
      at_ = percent;
      if (at_ < format_.size()) out += Directive();
      budget_.CheckString(static_cast<int64_t>(out.size()));
    }
    const bool mapping = arguments_.Is(Kind::kDict) || arguments_.Is(Kind::kList) ||
                         arguments_.Is(Kind::kUndefined) || arguments_.Is(Kind::kRange);
    const size_t total = arguments_.Is(Kind::kTuple) ? arguments_.sequence().items.size() : 1;
    if (!mapping && used_ < total) throw TemplateError("a '%' format does not use all of its arguments");
    return out;
  }

 private:
  Value NextArgument() {
    const bool tuple = arguments_.Is(Kind::kTuple);
    const size_t total = tuple ? arguments_.sequence().items.size() : 1;
    if (used_ >= total) throw TemplateError("a '%' format has too few arguments");
    const size_t index = used_++;
    return tuple ? arguments_.sequence().items[index] : arguments_;
  }

  int64_t Count() {
    if (at_ < format_.size() && format_[at_] == '*') {
      ++at_;
      const Value v = NextArgument();
      if (!v.IsIntegral() || !ToInt64(v.integer())) throw TemplateError("'*' in a format needs an integer");
      return static_cast<int64_t>(v.integer());
    }
    return ParseCount(format_, at_);
  }

  std::string Directive() {
    ++at_;
    std::optional<Value> keyed;
    if (at_ < format_.size() && format_[at_] == '(') {
      const size_t close = format_.find(')', at_);
      if (close == std::string::npos) throw TemplateError("a '%(' format is not closed");
      if (!arguments_.Is(Kind::kDict)) throw TemplateError("a '%(name)' format needs a dict");
      const Value* found = arguments_.dict().Find(format_.substr(at_ + 1, close - at_ - 1));
      if (found == nullptr)
        throw TemplateError("the key '" + format_.substr(at_ + 1, close - at_ - 1) +
                            "' is missing in a format");
      keyed = *found;
      at_ = close + 1;
    }
    NumberStyle style;
    bool zero = false;
    for (; at_ < format_.size() && std::string_view("#0- +").find(format_[at_]) != std::string_view::npos;
         ++at_) {
      const char c = format_[at_];
      if (c == '#') style.alternate = true;
      if (c == '0') zero = true;
      if (c == '-') style.align = '<';
      if (c == '+' || (c == ' ' && style.sign != '+')) style.sign = c;
    }
    style.width = Count();
    if (style.width < -1) style.align = '<';
    style.width = style.width < -1 ? -style.width : std::max<int64_t>(0, style.width);
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      style.precision = std::max<int64_t>(0, Count());
    }
    while (at_ < format_.size() && (format_[at_] == 'h' || format_[at_] == 'l' || format_[at_] == 'L')) ++at_;
    if (at_ >= format_.size()) throw TemplateError("a '%' format is incomplete");
    const char type = format_[at_++];
    if (type == '%') return "%";
    const Value value = keyed ? *keyed : NextArgument();
    return Convert(value, type, style, zero);
  }

  std::string Convert(const Value& value, char type, NumberStyle style, bool zero) {
    if (style.align == 0) style.align = '>';
    budget_.ChargeString(style.width);
    switch (type) {
      case 's':
        return Pad(Truncate(Shown(value), style.precision), style, '>', 0, budget_);
      case 'r':
      case 'a': {
        const std::string text = type == 'r' ? ToRepr(value, budget_) : ToAscii(value, budget_);
        return Pad(Truncate(markup_ ? EscapeHtml(text, budget_) : text, style.precision), style, '>', 0,
                   budget_);
      }
      case 'c': {
        std::string text;
        if (markup_) throw TemplateError("'%c' is not for markup");
        if (value.Is(Kind::kString) && value.string().length == 1) {
          text = value.text();
        } else if (value.IsIntegral() && value.integer() >= 0 && value.integer() <= 0x10ffff &&
                   (value.integer() < 0xd800 || value.integer() >= 0xe000)) {
          utf8::Append(static_cast<char32_t>(value.integer()), text);
        } else {
          throw TemplateError("'%c' needs a character");
        }
        return Pad(text, style, '>', 0, budget_);
      }
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X': {
        const bool decimal = type == 'd' || type == 'i' || type == 'u';
        if (markup_ && !decimal) throw TemplateError(std::string("'%") + type + "' is not for markup");
        Value number = value;
        if (decimal && value.Is(Kind::kFloat)) {
          if (!std::isfinite(value.AsDouble()) || std::fabs(value.AsDouble()) > 1e37)
            throw TemplateError("a number is too large for '%d'");
          number = Value::Integer(static_cast<Int>(value.AsDouble()));
        }
        if (!number.IsIntegral())
          throw TemplateError(std::string("'%") + type + "' needs a number, not " + TypeName(value));
        style.type = decimal ? 'd' : type;
        const int64_t digits = style.precision;  // here: the least number of digits
        style.precision = -1;
        if (digits >= 0) {
          budget_.ChargeString(digits);
          NumberStyle inner = style;
          inner.width = digits + (number.integer() < 0 || inner.sign != '-' ? 1 : 0) +
                        (inner.alternate && !decimal ? 2 : 0);
          inner.fill = "0";
          inner.align = '=';
          return Pad(FormatNumber(number, inner, budget_), style, '>', 0, budget_);
        }
        if (zero && style.align != '<') {
          style.fill = "0";
          style.align = '=';
        }
        return FormatNumber(number, style, budget_);
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (!value.IsNumber())
          throw TemplateError(std::string("'%") + type + "' needs a number, not " + TypeName(value));
        if (zero && style.align != '<') {
          style.fill = "0";
          style.align = '=';
        }
        style.type = type;
        return FormatNumber(Value::Float(value.AsDouble()), style, budget_);
      }
      default:
        throw TemplateError(std::string("'%") + type + "' is not a format");
    }
  }

  std::string Shown(const Value& value) {
    const bool as_it_is = !markup_ || (value.Is(Kind::kString) && value.string().markup);
    return as_it_is ? ToStr(value, budget_) : EscapeHtml(ToStr(value, budget_), budget_);
  }

  const std::string& format_;
  const Value& arguments_;
  const bool markup_;
  Budget& budget_;
  size_t at_ = 0;
  size_t used_ = 0;
};

}  // namespace

std::string PercentFormat(const std::string& format, const Value& arguments, bool markup, Budget& budget) {
  return Percent(format, arguments, markup, budget).Run();
}

std::string FormatSpec(const Value& value, const std::string& spec, Budget& budget) {
  if (spec.empty()) return ToStr(value, budget);
  const NumberStyle style = ParseSpec(spec);
  budget.ChargeString(style.width);
  if (value.IsNumber()) return FormatNumber(value, style, budget);
  if (!value.Is(Kind::kString))
    throw TemplateError("the format '" + spec + "' does not suit a value of type " + TypeName(value));
  if ((style.type != 0 && style.type != 's') || style.grouping != 0 || style.sign != '-' || style.alternate ||
      (style.align == '=' && style.fill != "0"))
    throw TemplateError("the format '" + spec + "' does not suit a string");
  NumberStyle text_style = style;
  if (text_style.align == '=') text_style.align = '<';  // a leading 0 in the width fills, nothing more
  return Pad(Truncate(value.text(), style.precision), text_style, '<', 0, budget);
}

}  // namespace celer::jinja
