#include "text/template/jinja/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/html.h"
#include "text/template/jinja/builtins.h"
#include "text/template/jinja/unicode.h"

namespace celer::jinja {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void AppendHex(std::string& out, uint32_t value, int digits) {
  for (int i = digits - 1; i >= 0; --i) out.push_back(kHex[value >> (4 * i) & 15]);
}

void AppendStringRepr(std::string& out, std::string_view text) {
  const bool use_double =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = use_double ? '"' : '\'';
  out.push_back(quote);
  for (size_t i = 0, n; i < text.size(); i += n) {
    const uint32_t c = DecodeAt(text, i, &n);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if ((CharClass(c) & kCharPrintable) != 0) {
      out.append(text.substr(i, n));
    } else {
      out += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
      AppendHex(out, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
    }
  }
  out.push_back(quote);
}

class Printer {
 public:
  explicit Printer(Budget& budget) : budget_(budget) {}

  void Repr(const Value& value) {
    budget_.Charge(1);
    if (++depth_ > 2 * budget_.limits().nesting)
      throw TemplateError("a value that holds itself cannot be printed");
    const size_t before = out_.size();
    switch (value.kind()) {
      case Kind::kUndefined:
        out_ += "Undefined";
        break;
      case Kind::kNone:
        out_ += "None";
        break;
      case Kind::kBool:
        out_ += value.boolean() ? "True" : "False";
        break;
      case Kind::kInt:
        out_ += IntText(value.integer());
        break;
      case Kind::kFloat:
        out_ += FloatRepr(value.AsDouble());
        break;
      case Kind::kString:
        if (value.string().markup) out_ += "Markup(";
        AppendStringRepr(out_, value.text());
        if (value.string().markup) out_ += ")";
        break;
      case Kind::kList:
        Items(value, '[', ']');
        break;
      case Kind::kTuple:
        Items(value, '(', ')');
        break;
      case Kind::kView:
        out_ += value.sequence().label;
        out_ += '(';
        Items(value, '[', ']');
        out_ += ')';
        break;
      case Kind::kRange: {
        const auto& range = value.sequence();
        out_ += "range(" + std::to_string(range.start) + ", " + std::to_string(range.stop);
        if (range.step != 1) out_ += ", " + std::to_string(range.step);
        out_ += ')';
        break;
      }
      case Kind::kDict:
        Entries(value.dict());
        break;
      case Kind::kNamespace:
        out_ += "<Namespace ";
        Entries(value.name_space().attributes);
        out_ += '>';
        break;
      default:
        out_ += "<" + TypeName(value) + ">";
        break;
    }
    budget_.ChargeString(static_cast<int64_t>(out_.size() - before));
    budget_.CheckString(static_cast<int64_t>(out_.size()));
    --depth_;
  }

  std::string Take() { return std::move(out_); }

 private:
  void Items(const Value& value, char open, char close) {
    const auto& items = value.sequence().items;
    out_ += open;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += ", ";
      Repr(items[i]);
    }
    if (close == ')' && items.size() == 1) out_ += ',';
    out_ += close;
  }
  void Entries(const Dict& dict) {
    out_ += '{';
    bool first = true;
    for (const auto& [key, value] : dict.entries) {
      if (!std::exchange(first, false)) out_ += ", ";
      Repr(key);
      out_ += ": ";
      Repr(value);
    }
    out_ += '}';
  }

  Budget& budget_;
  std::string out_;
  int depth_ = 0;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void Write(const Value& value) {
    budget_.Charge(1);
    const size_t before = out_.size();
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        break;
      case Kind::kBool:
        out_ += value.boolean() ? "true" : "false";
        break;
      case Kind::kInt:
        out_ += IntText(value.integer());
        break;
      case Kind::kFloat:
        out_ += Number(value.AsDouble());
        break;
      case Kind::kString:
        Quote(value.text());
        break;
      case Kind::kList:
      case Kind::kTuple:
        Array(value.sequence().items);
        break;
      case Kind::kDict:
        Object(value.dict());
        break;
      default:
        throw TemplateError("a value of type " + TypeName(value) + " cannot be written as JSON");
    }
    budget_.ChargeString(static_cast<int64_t>(out_.size() - before) / 4);
    budget_.CheckString(static_cast<int64_t>(out_.size()));
  }

  std::string Take() { return std::move(out_); }

 private:
  static std::string Number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return FloatRepr(d);
  }

  void Quote(std::string_view text) {
    out_ += '"';
    for (size_t i = 0, n; i < text.size(); i += n) {
      const uint32_t c = DecodeAt(text, i, &n);
      switch (c) {
        case '"':
          out_ += "\\\"";
          break;
        case '\\':
          out_ += "\\\\";
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\r':
          out_ += "\\r";
          break;
        case '\t':
          out_ += "\\t";
          break;
        case '\b':
          out_ += "\\b";
          break;
        case '\f':
          out_ += "\\f";
          break;
        default:
          if (c < 0x20 || (style_.ensure_ascii && c > 0x7e)) {
            Escape(c);
          } else {
            out_.append(text.substr(i, n));
          }
      }
    }
    out_ += '"';
  }

  void Escape(uint32_t c) {
    if (c >= 0x10000) {
      Escape(0xd7c0 + (c >> 10));
      c = 0xdc00 + (c & 0x3ff);
    }
    out_ += "\\u";
    AppendHex(out_, c, 4);
  }

  void NewLine() {
    if (!style_.pretty) return;
    budget_.ChargeString(static_cast<int64_t>(level_ * style_.indent.size()));
    out_ += '\n';
    for (size_t i = 0; i < level_; ++i) out_ += style_.indent;
    budget_.CheckString(static_cast<int64_t>(out_.size()));
  }

  void Array(const std::vector<Value>& items) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    ++level_;
    NewLine();
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) Separate();
      Write(items[i]);
    }
    --level_;
    NewLine();
    out_ += ']';
  }

  void Separate() {
    out_ += style_.item_separator;
    NewLine();
  }

  void Key(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        Quote(key.text());
        break;
      case Kind::kNone:
        out_ += "\"null\"";
        break;
      case Kind::kBool:
        out_ += key.boolean() ? "\"true\"" : "\"false\"";
        break;
      case Kind::kInt:
        out_ += '"' + IntText(key.integer()) + '"';
        break;
      case Kind::kFloat:
        out_ += '"' + Number(key.AsDouble()) + '"';
        break;
      default:
        throw TemplateError("a key of type " + TypeName(key) + " cannot be written as JSON");
    }
    out_ += style_.key_separator;
  }

  void Object(const Dict& dict) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      budget_.Charge(static_cast<int64_t>(entries.size()));
      std::stable_sort(entries.begin(), entries.end(), [this](const auto* a, const auto* b) {
        return Compare(a->first, b->first, "<", budget_) == -1;
      });
    }
    out_ += '{';
    ++level_;
    NewLine();
    bool first = true;
    for (const auto* entry : entries) {
      if (!std::exchange(first, false)) Separate();
      Key(entry->first);
      Write(entry->second);
    }
    --level_;
    NewLine();
    out_ += '}';
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
  size_t level_ = 0;
};

}  // namespace

std::string IntText(Int value) {
  if (value == 0) return "0";
  const bool negative = value < 0;
  unsigned __int128 rest =
      negative ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string text;
  for (; rest != 0; rest /= 10) text.push_back(static_cast<char>('0' + static_cast<int>(rest % 10)));
  if (negative) text.push_back('-');
  std::reverse(text.begin(), text.end());
  return text;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  std::string sign, digits;
  for (const char c : text.substr(0, e)) {
    if (c == '-') sign = "-";
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    const std::string power = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string ToRepr(const Value& value, Budget& budget) {
  Printer printer(budget);
  printer.Repr(value);
  return printer.Take();
}

std::string ToAscii(const Value& value, Budget& budget) {
  std::string out;
  const std::string repr = ToRepr(value, budget);
  for (size_t i = 0, n; i < repr.size(); i += n) {
    const uint32_t c = DecodeAt(repr, i, &n);
    if (c < 0x80) {
      out.push_back(static_cast<char>(c));
      continue;
    }
    out += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
    AppendHex(out, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
  }
  budget.ChargeString(static_cast<int64_t>(out.size()));
  return out;
}

std::string ToStr(const Value& value, Budget& budget) {
  if (value.Is(Kind::kString)) return value.text();
  if (value.Is(Kind::kUndefined)) return "";
  return ToRepr(value, budget);
}

std::string ToJson(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.Write(value);
  return writer.Take();
}

std::string EscapeHtml(std::string_view text, Budget& budget) {
  std::string out = celer::EscapeHtml(text);
  budget.ChargeString(static_cast<int64_t>(out.size()));
  return out;
}

}  // namespace celer::jinja
