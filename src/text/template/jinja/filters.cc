// Filters on strings and numbers, and the table of all filters. Those on lists are in list_filters.cc, those
// on HTML in markup_filters.cc, those that break lines in layout_filters.cc.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "text/template/jinja/builtins.h"
#include "text/template/jinja/format.h"
#include "text/template/jinja/interpreter.h"
#include "text/template/jinja/layout_filters.h"
#include "text/template/jinja/list_filters.h"
#include "text/template/jinja/markup_filters.h"
#include "text/template/jinja/str_tools.h"
#include "text/template/jinja/unicode.h"

namespace celer::jinja {
namespace {

// A value as a string that keeps its markup; a filter on it gives the same kind of string back.
Value SoftString(Interpreter& in, const Value& v) {
  return v.Is(Kind::kString) ? v : in.Text(in.Str(v));
}

template <std::string (*map)(std::string_view)>
Value MapCase(Interpreter& in, const Value& v, const Args& args) {
  Bind("the filter", args, {}, 0);
  const Value text = SoftString(in, v);
  in.budget().ChargeString(static_cast<int64_t>(text.text().size()));
  return in.Text(map(text.text()), text.string().markup);
}

Value Trim(Interpreter& in, const Value& v, const Args& args) {
  Bind("trim", args, {"chars"}, 0);
  return FindStringMethod("strip")(in, SoftString(in, v), args);
}

Value Center(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("center", args, {"width"}, 0);
  const Value text = SoftString(in, v);
  return in.Text(JustifyText(text.text(), IntArg("center", bound[0], 80), " ", '^', in.budget()),
                 text.string().markup);
}

// Unlike str.title(): a word starts only after a space or one of - ( { [ <.
Value Title(Interpreter& in, const Value& v, const Args& args) {
  Bind("title", args, {}, 0);
  const Value text = SoftString(in, v);
  const std::string& s = text.text();
  std::string out;
  bool word_start = true;
  for (size_t i = 0, n; i < s.size(); i += n) {
    const uint32_t c = DecodeAt(s, i, &n);
    const bool separator = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    const std::string_view piece = std::string_view(s).substr(i, n);
    out += separator ? std::string(piece) : word_start ? ToUpper(piece) : ToLower(piece);
    word_start = separator;
  }
  return in.Text(std::move(out));
}

Value ReplaceFilter(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("replace", args, {"old", "new", "count"}, 2);
  const bool all = bound[2] == nullptr || bound[2]->Is(Kind::kNone);
  const int64_t count = all ? -1 : IntArg("replace", bound[2], -1);
  if (!in.autoescape())
    return in.Text(Replace(in.Str(v), in.Str(*bound[0]), in.Str(*bound[1]), count, in.budget()));
  const auto is_markup = [](const Value& value) { return value.Is(Kind::kString) && value.string().markup; };
  const bool markup = is_markup(v) || is_markup(*bound[0]) || is_markup(*bound[1]);
  const bool escape = is_markup(*bound[0]) || (is_markup(*bound[1]) && !is_markup(v));
  return in.Text(Replace(escape ? in.Escaped(v) : in.Str(v), in.Str(*bound[0]),
                         markup ? in.Escaped(*bound[1]) : in.Str(*bound[1]), count, in.budget()),
                 markup);
}

Value StringFilter(Interpreter& in, const Value& v, const Args& args) {
  Bind("string", args, {}, 0);
  return SoftString(in, v);
}

Value Safe(Interpreter& in, const Value& v, const Args& args) {
  Bind("safe", args, {}, 0);
  return in.Text(in.Str(v), true);
}

Value Escape(Interpreter& in, const Value& v, const Args& args) {
  Bind("escape", args, {}, 0);
  if (v.Is(Kind::kString) && v.string().markup) return v;
  return in.Text(EscapeHtml(in.Str(v), in.budget()), true);
}

Value ForceEscape(Interpreter& in, const Value& v, const Args& args) {
  Bind("forceescape", args, {}, 0);
  return in.Text(EscapeHtml(in.Str(v), in.budget()), true);
}

Value Format(Interpreter& in, const Value& v, const Args& args) {
  if (!args.positional.empty() && !args.keyword.empty())
    throw TemplateError("format takes positional or named arguments, not both");
  Value arguments = MakeTuple(in.budget(), args.positional);
  if (!args.keyword.empty()) {
    auto dict = NewDict();
    for (const auto& [name, value] : args.keyword) dict->Set(in.Text(name), value, in.budget());
    arguments = FinishDict(in.budget(), std::move(dict));
  }
  return in.Math(Op::kMod, SoftString(in, v), arguments);
}

Value Indent(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("indent", args, {"width", "first", "blank"}, 0);
  if (!v.Is(Kind::kString)) throw TemplateError("indent needs a string, not " + TypeName(v));
  std::string indent;
  if (bound[0] != nullptr && bound[0]->Is(Kind::kString)) {
    indent = bound[0]->text();
  } else {
    const int64_t width = std::max<int64_t>(0, IntArg("indent", bound[0], 4));
    in.budget().CheckString(width);
    indent = std::string(static_cast<size_t>(width), ' ');
  }
  const bool blank = BoolArg(bound[2], false);
  const std::string source = v.text() + "\n";
  std::string out = BoolArg(bound[1], false) ? indent : "";
  bool first_line = true;
  for (const std::string_view line : SplitLines(source, false, in.budget())) {
    if (!first_line) {
      out += '\n';
      if (blank || !line.empty()) out += indent;
    }
    first_line = false;
    out += line;
    in.budget().Charge(1);
    in.budget().CheckString(static_cast<int64_t>(out.size()));
  }
  return in.Text(std::move(out), v.string().markup);
}

Value Truncate(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("truncate", args, {"length", "killwords", "end", "leeway"}, 0);
  const int64_t length = IntArg("truncate", bound[0], 255);
  const std::string end = bound[2] != nullptr ? StringArg("truncate", bound[2]) : "...";
  const int64_t leeway =
      bound[3] == nullptr || bound[3]->Is(Kind::kNone) ? 5 : IntArg("truncate", bound[3], 5);
  const int64_t keep = length - CountCodePoints(end);
  if (keep < 0 || leeway < 0) throw TemplateError("truncate needs a length that leaves room for its end");
  if (in.Length(v) <= length + leeway) return v;
  const std::string& text = StringArg("truncate", &v);
  std::string cut = text.substr(0, ByteOffset(text, keep));
  if (!BoolArg(bound[1], false)) cut = cut.substr(0, cut.rfind(' '));
  const bool markup = v.string().markup;
  return in.Math(Op::kAdd, in.Text(std::move(cut), markup), bound[2] != nullptr ? *bound[2] : in.Text(end));
}

Value WordCount(Interpreter& in, const Value& v, const Args& args) {
  Bind("wordcount", args, {}, 0);
  const std::string text = in.Str(v);
  in.budget().Charge(static_cast<int64_t>(text.size()) / 4);
  int64_t words = 0;
  bool in_word = false;
  for (size_t i = 0, n; i < text.size(); i += n) {
    const bool word = IsWord(DecodeAt(text, i, &n));
    words += word && !in_word;
    in_word = word;
  }
  return Value::Integer(words);
}

Value UrlEncode(Interpreter& in, const Value& v, const Args& args) {
  Bind("urlencode", args, {}, 0);
  const auto quote = [&](const Value& value, bool query) {
    std::string out;
    for (const char c : in.Str(value)) {
      const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !query);
      if (plain) {
        out.push_back(c);
      } else if (c == ' ' && query) {
        out.push_back('+');
      } else {
        constexpr char kHex[] = "0123456789ABCDEF";
        out += {'%', kHex[static_cast<unsigned char>(c) >> 4], kHex[c & 15]};
      }
    }
    in.budget().ChargeString(static_cast<int64_t>(out.size()));
    return out;
  };
  const bool pairs = v.Is(Kind::kDict) || v.IsSequence() || v.Is(Kind::kView) || v.Is(Kind::kIterator);
  if (!pairs) return in.Text(quote(v, false));
  std::vector<std::pair<Value, Value>> entries;
  if (v.Is(Kind::kDict)) {
    entries = v.dict().entries;
  } else {
    for (const Value& pair : in.Items(v)) {
      const std::vector<Value> two = in.Items(pair);
      if (two.size() != 2) throw TemplateError("urlencode needs pairs");
      entries.emplace_back(two[0], two[1]);
    }
  }
  std::string out;
  for (const auto& [key, value] : entries) {
    if (!out.empty()) out += '&';
    out += quote(key, true) + "=" + quote(value, true);
    in.budget().CheckString(static_cast<int64_t>(out.size()));
  }
  return in.Text(std::move(out));
}

Value ToJsonFilter(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ensure_ascii = BoolArg(bound[0], false);
  style.sort_keys = BoolArg(bound[3], false);
  if (bound[1] != nullptr && !bound[1]->Is(Kind::kNone)) {
    style.pretty = true;
    style.item_separator = ",";
    if (bound[1]->Is(Kind::kString)) {
      style.indent = bound[1]->text();
    } else {
      const int64_t width = std::max<int64_t>(0, IntArg("tojson", bound[1], 0));
      in.budget().CheckString(width);
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
  }
  if (bound[2] != nullptr && !bound[2]->Is(Kind::kNone)) {
    const std::vector<Value> two = in.Items(*bound[2]);
    if (two.size() != 2) throw TemplateError("tojson needs two separators");
    style.item_separator = StringArg("tojson", &two[0]);
    style.key_separator = StringArg("tojson", &two[1]);
  }
  return in.Text(ToJson(v, style, in.budget()));
}

// --- Numbers ---

std::string NumberText(
    std::string_view text) {  // as int() and float() read it: trimmed, digits with single _
  std::string out(Strip(text, StripSide::kBoth));
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] != '_') continue;
    const auto digit = [&](size_t k) {
      return k < out.size() && std::isxdigit(static_cast<unsigned char>(out[k])) != 0;
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return "?";
  }
  std::erase(out, '_');
  return out;
}

}  // namespace

std::optional<double> ParseFloat(std::string_view source) {
  std::string text = NumberText(source);
  std::string lower = ToLower(text);
  const bool negative = lower.starts_with('-');
  if (lower.starts_with('-') || lower.starts_with('+')) lower.erase(0, 1);
  if (lower == "inf" || lower == "infinity") return negative ? -HUGE_VAL : HUGE_VAL;
  if (lower == "nan") return std::nan("");
  if (lower.empty() || !((lower[0] >= '0' && lower[0] <= '9') || lower[0] == '.')) return std::nullopt;
  double d = 0;
  const auto parsed = std::from_chars(lower.data(), lower.data() + lower.size(), d);
  if (parsed.ptr != lower.data() + lower.size()) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) {  // too large is infinite, too small is zero
    const size_t e = lower.find('e');
    d = e != std::string::npos && e + 1 < lower.size() && lower[e + 1] == '-' ? 0 : HUGE_VAL;
  } else if (parsed.ec != std::errc{}) {
    return std::nullopt;
  }
  return negative ? -d : d;
}

namespace {

std::optional<Int> ParseInt(std::string_view source, int64_t base) {
  std::string text = ToLower(NumberText(source));
  const bool negative = text.starts_with('-');
  if (text.starts_with('-') || text.starts_with('+')) text.erase(0, 1);
  const auto prefix = [&](char letter, int64_t value) {
    if (text.size() < 2 || text[0] != '0' || text[1] != letter || (base != value && base != 0)) return false;
    text.erase(0, 2);
    base = value;
    return true;
  };
  if (!prefix('x', 16) && !prefix('o', 8) && !prefix('b', 2) && base == 0) {
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos)
      return std::nullopt;
    base = 10;
  }
  if (text.empty()) return std::nullopt;
  Int value = 0;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, static_cast<Int>(base), &value) ||
        __builtin_add_overflow(value, Int{digit}, &value))
      throw TemplateError("an integer does not fit in 128 bits");
  }
  return negative ? -value : value;
}

std::optional<Int> Truncated(double d) {
  if (!std::isfinite(d)) return std::nullopt;
  if (std::fabs(d) > 1e38) throw TemplateError("an integer does not fit in 128 bits");
  return static_cast<Int>(d);
}

Value IntFilter(Interpreter&, const Value& v, const Args& args) {
  const auto bound = Bind("int", args, {"default", "base"}, 0);
  const Value fallback = bound[0] != nullptr ? *bound[0] : Value::Integer(0);
  if (v.Is(Kind::kUndefined)) throw TemplateError(v.undefined_reason());
  if (v.IsIntegral()) return Value::Integer(v.integer());
  if (v.Is(Kind::kFloat)) {
    if (std::isinf(v.AsDouble())) throw TemplateError("int cannot read an infinite number");
    const auto whole = Truncated(v.AsDouble());
    return whole ? Value::Integer(*whole) : fallback;
  }
  if (!v.Is(Kind::kString)) return fallback;
  const int64_t base = IntArg("int", bound[1], 10);
  if (base == 0 || (base >= 2 && base <= 36))
    if (const auto whole = ParseInt(v.text(), base)) return Value::Integer(*whole);
  const auto number = ParseFloat(v.text());
  const auto whole = number ? Truncated(*number) : std::nullopt;
  return whole ? Value::Integer(*whole) : fallback;
}

Value FloatFilter(Interpreter&, const Value& v, const Args& args) {
  const auto bound = Bind("float", args, {"default"}, 0);
  if (v.Is(Kind::kUndefined)) throw TemplateError(v.undefined_reason());
  if (v.IsNumber()) return Value::Float(v.AsDouble());
  if (v.Is(Kind::kString))
    if (const auto number = ParseFloat(v.text())) return Value::Float(*number);
  return bound[0] != nullptr ? *bound[0] : Value::Float(0);
}

Value Abs(Interpreter& in, const Value& v, const Args& args) {
  Bind("abs", args, {}, 0);
  if (!v.IsNumber()) throw TemplateError("abs needs a number, not " + TypeName(v));
  if (v.Is(Kind::kFloat)) return Value::Float(std::fabs(v.AsDouble()));
  return v.integer() < 0 ? in.Negate(v) : Value::Integer(v.integer());
}

// Half to even at the decimal that is asked for, from the exact value, as Python's round().
double RoundFloat(double d, int64_t digits) {
  if (!std::isfinite(d) || digits > 300) return d;
  if (digits < -308) return std::copysign(0.0, d);
  if (digits >= 0) {
    char buffer[1024];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), d);
    return std::strtod(buffer, nullptr);
  }
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(d / unit) * unit;
}

Value Round(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("round", args, {"precision", "method"}, 0);
  const int64_t precision = IntArg("round", bound[0], 0);
  const std::string method = bound[1] != nullptr ? in.Str(*bound[1]) : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    throw TemplateError("the method of round must be common, ceil or floor");
  if (!v.IsNumber()) throw TemplateError("round needs a number, not " + TypeName(v));
  if (method == "common") {
    if (v.Is(Kind::kFloat)) return Value::Float(RoundFloat(v.AsDouble(), precision));
    if (precision >= 0) return Value::Integer(v.integer());
    if (precision < -38) return Value::Integer(0);
    Int unit = 1;
    for (int64_t i = precision; i < 0; ++i) unit *= 10;
    Int below = v.integer() / unit * unit;
    if (below > v.integer()) below -= unit;
    const Int rest = v.integer() - below;
    const bool up = rest * 2 > unit || (rest * 2 == unit && below / unit % 2 != 0);
    return Value::Integer(up ? below + unit : below);
  }
  const Value power = in.Math(Op::kPow, Value::Integer(10), Value::Integer(precision));
  const Value scaled = in.Math(Op::kMul, v, power);
  const double whole = method == "ceil" ? std::ceil(scaled.AsDouble()) : std::floor(scaled.AsDouble());
  const auto integer = Truncated(whole);
  if (!integer) throw TemplateError("round cannot use an infinite number");
  return in.Math(Op::kDiv, Value::Integer(*integer), power);
}

Value Default(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("default", args, {"default_value", "boolean"}, 0);
  if (v.Is(Kind::kUndefined) || (BoolArg(bound[1], false) && !Truthy(v)))
    return bound[0] != nullptr ? *bound[0] : in.Text("");
  return v;
}

Value Attr(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("attr", args, {"name"}, 1);
  const std::string& name = StringArg("attr", bound[0]);
  if (!in.HasAttribute(v, name)) return Value::Undefined("a dict has no attribute '" + name + "'");
  return in.Attribute(v, name);
}

Value Length(Interpreter& in, const Value& v, const Args& args) {
  Bind("length", args, {}, 0);
  return Value::Integer(in.Length(v));
}

}  // namespace

FilterFn FindFilter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFn> kFilters = {
      {"abs", Abs},
      {"attr", Attr},
      {"capitalize", MapCase<Capitalize>},
      {"center", Center},
      {"count", Length},
      {"d", Default},
      {"default", Default},
      {"e", Escape},
      {"escape", Escape},
      {"float", FloatFilter},
      {"forceescape", ForceEscape},
      {"format", Format},
      {"indent", Indent},
      {"int", IntFilter},
      {"length", Length},
      {"lower", MapCase<ToLower>},
      {"replace", ReplaceFilter},
      {"round", Round},
      {"safe", Safe},
      {"string", StringFilter},
      {"title", Title},
      {"tojson", ToJsonFilter},
      {"trim", Trim},
      {"truncate", Truncate},
      {"upper", MapCase<ToUpper>},
      {"urlencode", UrlEncode},
      {"wordcount", WordCount},
  };
  const auto found = kFilters.find(name);
  if (found != kFilters.end()) return found->second;
  if (const FilterFn filter = FindListFilter(name)) return filter;
  if (const FilterFn filter = FindMarkupFilter(name)) return filter;
  return FindLayoutFilter(name);
}

}  // namespace celer::jinja
