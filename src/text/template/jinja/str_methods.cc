// The methods of Python's str. Indices and widths count code points.
#include <algorithm>
#include <unordered_map>

#include "base/utf8.h"
#include "text/template/jinja/builtins.h"
#include "text/template/jinja/format.h"
#include "text/template/jinja/interpreter.h"
#include "text/template/jinja/str_tools.h"
#include "text/template/jinja/unicode.h"

namespace celer::jinja {
namespace {

Value Same(Interpreter& in, const Value& self, std::string text) {
  return in.Text(std::move(text), self.string().markup);
}

Value StripMethod(Interpreter& in, const Value& self, const Args& args, const char* name, StripSide side) {
  const auto bound = Bind(name, args, {"chars"}, 0);
  const bool use_chars = bound[0] != nullptr && !bound[0]->Is(Kind::kNone);
  const std::string_view chars = use_chars ? std::string_view(StringArg(name, bound[0])) : std::string_view();
  const int64_t per_byte = 1 + static_cast<int64_t>(chars.size()) / 16;
  in.budget().Charge(static_cast<int64_t>(self.text().size()) / 16 * per_byte);
  return Same(in, self, std::string(Strip(self.text(), side, use_chars, chars)));
}

Value StripBoth(Interpreter& in, const Value& self, const Args& args) {
  return StripMethod(in, self, args, "strip", StripSide::kBoth);
}
Value StripLeft(Interpreter& in, const Value& self, const Args& args) {
  return StripMethod(in, self, args, "lstrip", StripSide::kLeft);
}
Value StripRight(Interpreter& in, const Value& self, const Args& args) {
  return StripMethod(in, self, args, "rstrip", StripSide::kRight);
}

template <std::string (*map)(std::string_view)>
Value CaseMethod(Interpreter& in, const Value& self, const Args& args) {
  Bind("a method of str", args, {}, 0);
  in.budget().ChargeString(static_cast<int64_t>(self.text().size()));
  return Same(in, self, map(self.text()));
}

Value StringList(Interpreter& in, const Value& self, const std::vector<std::string_view>& pieces) {
  in.budget().Charge(3 * static_cast<int64_t>(pieces.size()));
  std::vector<Value> items;
  items.reserve(pieces.size());
  for (const std::string_view piece : pieces) items.push_back(Same(in, self, std::string(piece)));
  return MakeList(in.budget(), std::move(items));
}

Value SplitMethod(Interpreter& in, const Value& self, const Args& args, bool from_right) {
  const char* name = from_right ? "rsplit" : "split";
  const auto bound = Bind(name, args, {"sep", "maxsplit"}, 0);
  const int64_t limit = IntArg(name, bound[1], -1);
  in.budget().Charge(static_cast<int64_t>(self.text().size()) / 16);
  if (bound[0] == nullptr || bound[0]->Is(Kind::kNone))
    return StringList(in, self,
                      from_right ? RightSplitSpace(self.text(), limit, in.budget())
                                 : SplitSpace(self.text(), limit, in.budget()));
  const std::string& separator = StringArg(name, bound[0]);
  if (separator.empty()) throw TemplateError(std::string(name) + "() needs a separator that is not empty");
  return StringList(in, self,
                    from_right ? RightSplit(self.text(), separator, limit, in.budget())
                               : Split(self.text(), separator, limit, in.budget()));
}

Value SplitLeft(Interpreter& in, const Value& self, const Args& args) {
  return SplitMethod(in, self, args, false);
}
Value SplitRight(Interpreter& in, const Value& self, const Args& args) {
  return SplitMethod(in, self, args, true);
}

Value SplitLinesMethod(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("splitlines", args, {"keepends"}, 0);
  return StringList(in, self, SplitLines(self.text(), BoolArg(bound[0], false), in.budget()));
}

// The part of self that optional start and end arguments choose, and the code point where it starts; false
// when start is past the end of the text (then even the empty string is not found).
bool ChoosePart(const char* name, const Value& self, const Value* start, const Value* end,
                std::string_view* part, int64_t* first) {
  const int64_t length = self.string().length;
  const auto bring_in = [&](const Value* v, int64_t fallback) {
    if (v == nullptr || v->Is(Kind::kNone)) return fallback;
    int64_t i = IntArg(name, v, 0);
    if (i < 0) i = std::max<int64_t>(0, i + length);
    return i;
  };
  const int64_t from = bring_in(start, 0);
  const int64_t to = std::min(bring_in(end, length), length);
  if (from > length || from > to) return false;
  const std::string_view text = self.text();
  const size_t a = self.string().ascii() ? static_cast<size_t>(from) : ByteOffset(text, from);
  const size_t b = self.string().ascii() ? static_cast<size_t>(to) : ByteOffset(text, to);
  *part = text.substr(a, b - a);
  *first = from;
  return true;
}

template <bool at_start>
Value StartsOrEndsWith(Interpreter& in, const Value& self, const Args& args) {
  const char* name = at_start ? "startswith" : "endswith";
  const auto bound = Bind(name, args, {"prefix", "start", "end"}, 1);
  std::string_view part;
  int64_t first = 0;
  const bool valid = ChoosePart(name, self, bound[1], bound[2], &part, &first);
  const auto matches = [&](const Value& v) {
    const std::string& text = StringArg(name, &v);
    in.budget().Charge(1 + static_cast<int64_t>(text.size()) / 64);
    return valid && (at_start ? part.starts_with(text) : part.ends_with(text));
  };
  if (!bound[0]->Is(Kind::kTuple)) return Value::Bool(matches(*bound[0]));
  const auto& all = bound[0]->sequence().items;
  return Value::Bool(std::any_of(all.begin(), all.end(), matches));
}

// -1 when not found.
int64_t FindIn(Interpreter& in, const Value& self, const Args& args, const char* name, bool from_right) {
  const auto bound = Bind(name, args, {"sub", "start", "end"}, 1);
  const std::string& needle = StringArg(name, bound[0]);
  std::string_view part;
  int64_t first = 0;
  if (!ChoosePart(name, self, bound[1], bound[2], &part, &first)) return -1;
  in.budget().Charge(static_cast<int64_t>(part.size()) / 16);
  const size_t at = from_right ? RightFindText(part, needle) : FindText(part, needle);
  return at == std::string::npos ? -1 : first + CountCodePoints(part.substr(0, at));
}

template <bool from_right>
Value Find(Interpreter& in, const Value& self, const Args& args) {
  return Value::Integer(FindIn(in, self, args, from_right ? "rfind" : "find", from_right));
}

template <bool from_right>
Value Index(Interpreter& in, const Value& self, const Args& args) {
  const int64_t at = FindIn(in, self, args, from_right ? "rindex" : "index", from_right);
  if (at < 0) throw TemplateError("index(): the text is not found");
  return Value::Integer(at);
}

Value Count(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("count", args, {"sub", "start", "end"}, 1);
  const std::string& needle = StringArg("count", bound[0]);
  std::string_view part;
  int64_t first = 0;
  if (!ChoosePart("count", self, bound[1], bound[2], &part, &first)) return Value::Integer(0);
  in.budget().Charge(static_cast<int64_t>(part.size()) / 16);
  if (needle.empty()) return Value::Integer(CountCodePoints(part) + 1);
  int64_t n = 0;
  for (size_t at = FindText(part, needle); at != std::string::npos;
       at = FindText(part, needle, at + needle.size()))
    ++n;
  return Value::Integer(n);
}

Value ReplaceMethod(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("replace", args, {"old", "new", "count"}, 2);
  const std::string with = self.string().markup ? in.Escaped(*bound[1]) : StringArg("replace", bound[1]);
  return Same(in, self,
              Replace(self.text(), StringArg("replace", bound[0]), with, IntArg("replace", bound[2], -1),
                      in.budget()));
}

Value JoinMethod(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("join", args, {"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : in.Items(*bound[0])) {
    if (!item.Is(Kind::kString) && !self.string().markup)
      throw TemplateError("join() needs strings, not " + TypeName(item));
    const std::string& piece = self.string().markup ? in.Escaped(item) : item.text();
    in.budget().CheckString(static_cast<int64_t>(out.size() + piece.size() + self.text().size()));
    if (!std::exchange(first, false)) out += self.text();
    out += piece;
  }
  return Same(in, self, std::move(out));
}

template <char align>
Value Justify(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("a method of str", args, {"width", "fillchar"}, 1);
  std::string fill = bound[1] == nullptr ? " " : StringArg("fillchar", bound[1]);
  if (self.string().markup && bound[1] != nullptr) fill = in.Escaped(*bound[1]);
  if (CountCodePoints(fill) != 1) throw TemplateError("the fill character must be one character");
  return Same(in, self, JustifyText(self.text(), IntArg("width", bound[0], 0), fill, align, in.budget()));
}

Value ZeroFill(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("zfill", args, {"width"}, 1);
  const std::string& text = self.text();
  const size_t sign = !text.empty() && (text[0] == '+' || text[0] == '-') ? 1 : 0;
  const int64_t width = IntArg("zfill", bound[0], 0);
  return Same(in, self,
              text.substr(0, sign) +
                  JustifyText(text.substr(sign), width - static_cast<int64_t>(sign), "0", '>', in.budget()));
}

template <bool from_right>
Value Partition(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("partition", args, {"sep"}, 1);
  const std::string& separator = StringArg("partition", bound[0]);
  if (separator.empty()) throw TemplateError("partition() needs a separator that is not empty");
  const std::string& text = self.text();
  in.budget().Charge(static_cast<int64_t>(text.size()) / 16);
  const size_t at = from_right ? RightFindText(text, separator) : FindText(text, separator);
  std::string parts[3];
  if (at == std::string::npos) {
    parts[from_right ? 2 : 0] = text;
  } else {
    parts[0] = text.substr(0, at);
    parts[1] = separator;
    parts[2] = text.substr(at + separator.size());
  }
  std::vector<Value> items;
  for (std::string& part : parts) items.push_back(Same(in, self, std::move(part)));
  return MakeTuple(in.budget(), std::move(items));
}

Value RemovePrefix(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("removeprefix", args, {"prefix"}, 1);
  const std::string& prefix = StringArg("removeprefix", bound[0]);
  return self.text().starts_with(prefix) ? Same(in, self, self.text().substr(prefix.size())) : self;
}

Value RemoveSuffix(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("removesuffix", args, {"suffix"}, 1);
  const std::string& suffix = StringArg("removesuffix", bound[0]);
  return self.text().ends_with(suffix)
             ? Same(in, self, self.text().substr(0, self.text().size() - suffix.size()))
             : self;
}

Value ExpandTabs(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("expandtabs", args, {"tabsize"}, 0);
  const int64_t tab = IntArg("expandtabs", bound[0], 8);
  std::string out;
  int64_t column = 0;
  for (const char c : self.text()) {
    if (c == '\t') {
      const int64_t n = tab > 0 ? tab - column % tab : 0;
      in.budget().CheckString(static_cast<int64_t>(out.size()) + n);
      out.append(static_cast<size_t>(n), ' ');
      column += n;
    } else {
      out.push_back(c);
      column = c == '\n' || c == '\r' ? 0 : column + !utf8::IsContinuation(c);
    }
  }
  return Same(in, self, std::move(out));
}

// --- str.format ---

struct FormatRun {
  Interpreter& in;
  const Args& args;
  const bool markup;  // what is put in is escaped
  int64_t next_auto = 0;
  bool used_auto = false, used_numbers = false;

  Value FirstPart(const std::string& name) {
    const bool digits = !name.empty() && name.size() < 10 &&
                        std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (name.empty() || digits) {
      (name.empty() ? used_auto : used_numbers) = true;
      if (used_auto && used_numbers)
        throw TemplateError("format(): numbered and unnumbered fields cannot be mixed");
      const int64_t index = name.empty() ? next_auto++ : std::stoll(name);
      if (index >= static_cast<int64_t>(args.positional.size()))
        throw TemplateError("format(): there is no argument " + std::to_string(index));
      return args.positional[index];
    }
    for (const auto& [key, value] : args.keyword)
      if (key == name) return value;
    throw TemplateError("format(): there is no argument '" + name + "'");
  }

  Value Field(const std::string& field) {
    const size_t first = std::min(field.find_first_of(".["), field.size());
    if (first == 0 && !field.empty())
      throw TemplateError("format(): the field '" + field + "' names no argument");
    Value value = FirstPart(field.substr(0, first));
    for (size_t at = first; at < field.size();) {
      if (field[at] == '.') {
        const size_t end = std::min(field.find_first_of(".[", at + 1), field.size());
        value = in.Attribute(value, field.substr(at + 1, end - at - 1));
        at = end;
      } else {
        const size_t close = field.find(']', at);
        if (field[at] != '[' || close == std::string::npos)
          throw TemplateError("format(): '" + field + "' is not a field");
        const std::string key = field.substr(at + 1, close - at - 1);
        const bool number = !key.empty() && key.size() < 18 &&
                            std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
        value = in.Item(value, number ? Value::Integer(std::stoll(key)) : in.Text(key));
        at = close + 1;
      }
    }
    return value;
  }

  std::string Run(const std::string& format, int depth) {
    if (depth == 0) throw TemplateError("format(): fields are nested too deeply");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at];
      if (c != '{' && c != '}') {
        out.push_back(c);
        ++at;
        continue;
      }
      if (at + 1 < format.size() && format[at + 1] == c) {
        out.push_back(c);
        at += 2;
        continue;
      }
      if (c == '}') throw TemplateError("format(): a single '}' stands in the text");
      size_t end = at + 1;
      for (int open = 1; open > 0; ++end) {
        if (end >= format.size()) throw TemplateError("format(): a '{' is not closed");
        open += format[end] == '{' ? 1 : format[end] == '}' ? -1 : 0;
      }
      out += Replacement(format.substr(at + 1, end - at - 2), depth);
      in.budget().CheckString(static_cast<int64_t>(out.size()));
      at = end;
    }
    return out;
  }

  std::string Replacement(const std::string& inside, int depth) {
    size_t name_end = 0;
    bool in_brackets = false;
    while (name_end < inside.size() &&
           (in_brackets || (inside[name_end] != ':' && inside[name_end] != '!'))) {
      in_brackets = inside[name_end] == '[' || (in_brackets && inside[name_end] != ']');
      ++name_end;
    }
    Value value = Field(inside.substr(0, name_end));
    size_t at = name_end;
    if (at < inside.size() && inside[at] == '!') {
      if (at + 1 >= inside.size()) throw TemplateError("format(): a conversion is missing after '!'");
      const char conversion = inside[at + 1];
      if (conversion != 'r' && conversion != 's' && conversion != 'a')
        throw TemplateError("format(): the conversion after '!' must be r, s or a");
      value = in.Text(conversion == 's'   ? in.Str(value)
                      : conversion == 'r' ? in.Repr(value)
                                          : ToAscii(value, in.budget()));
      at += 2;
      if (at < inside.size() && inside[at] != ':')
        throw TemplateError("format(): expected ':' after the conversion");
    }
    const std::string spec = at < inside.size() ? Run(inside.substr(at + 1), depth - 1) : "";
    if (!markup) return FormatSpec(value, spec, in.budget());
    if (!value.Is(Kind::kString) || !value.string().markup)
      return EscapeHtml(FormatSpec(value, spec, in.budget()), in.budget());
    if (!spec.empty()) throw TemplateError("format(): markup takes no format specification");
    return value.text();
  }
};

Value FormatMethod(Interpreter& in, const Value& self, const Args& args) {
  FormatRun run{in, args, self.string().markup};
  return Same(in, self, run.Run(self.text(), 2));
}

Value FormatMap(Interpreter& in, const Value& self, const Args& args) {
  const auto bound = Bind("format_map", args, {"mapping"}, 1);
  if (!bound[0]->Is(Kind::kDict)) throw TemplateError("format_map() needs a dict");
  Args named;
  for (const auto& [key, value] : bound[0]->dict().entries)
    if (key.Is(Kind::kString)) named.keyword.emplace_back(key.text(), value);
  FormatRun run{in, named, self.string().markup};
  return Same(in, self, run.Run(self.text(), 2));
}

// --- Questions about all characters ---

template <uint32_t any_of>
Value AllOf(Interpreter& in, const Value& self, const Args& args) {
  Bind("a method of str", args, {}, 0);
  const std::string& text = self.text();
  in.budget().Charge(static_cast<int64_t>(text.size()) / 4);
  bool all = !text.empty() || any_of == kCharPrintable;
  for (size_t i = 0, n; i < text.size() && all; i += n)
    all = (CharClass(DecodeAt(text, i, &n)) & any_of) != 0;
  return Value::Bool(all);
}

template <bool upper>
Value IsCase(Interpreter& in, const Value& self, const Args& args) {
  Bind("a method of str", args, {}, 0);
  return Value::Bool(HasCase(self.text(), upper, in.budget()));
}

Value IsTitle(Interpreter& in, const Value& self, const Args& args) {
  Bind("istitle", args, {}, 0);
  const std::string& text = self.text();
  in.budget().Charge(static_cast<int64_t>(text.size()) / 4);
  bool any = false, in_word = false;
  for (size_t i = 0, n; i < text.size(); i += n) {
    const uint32_t flags = CharClass(DecodeAt(text, i, &n));
    if ((flags & (kCharUpper | kCharTitle)) != 0) {
      if (in_word) return Value::Bool(false);
      in_word = any = true;
    } else if ((flags & kCharLower) != 0) {
      if (!in_word) return Value::Bool(false);
      any = true;
    } else {
      in_word = false;
    }
  }
  return Value::Bool(any);
}

Value IsAscii(Interpreter&, const Value& self, const Args& args) {
  Bind("isascii", args, {}, 0);
  return Value::Bool(self.string().ascii());
}

Value IsIdentifier(Interpreter& in, const Value& self, const Args& args) {
  Bind("isidentifier", args, {}, 0);
  const std::string& text = self.text();
  in.budget().Charge(static_cast<int64_t>(text.size()) / 4);
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return Value::Bool(false);
  for (size_t i = 0, n; i < text.size(); i += n)
    if (!IsWord(DecodeAt(text, i, &n))) return Value::Bool(false);
  return Value::Bool(true);
}

}  // namespace

FilterFn FindStringMethod(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFn> kMethods = {
      {"strip", StripBoth},
      {"lstrip", StripLeft},
      {"rstrip", StripRight},
      {"upper", CaseMethod<ToUpper>},
      {"lower", CaseMethod<ToLower>},
      {"title", CaseMethod<TitleCase>},
      {"capitalize", CaseMethod<Capitalize>},
      {"casefold", CaseMethod<CaseFold>},
      {"swapcase", CaseMethod<SwapCase>},
      {"split", SplitLeft},
      {"rsplit", SplitRight},
      {"splitlines", SplitLinesMethod},
      {"startswith", StartsOrEndsWith<true>},
      {"endswith", StartsOrEndsWith<false>},
      {"find", Find<false>},
      {"rfind", Find<true>},
      {"index", Index<false>},
      {"rindex", Index<true>},
      {"count", Count},
      {"replace", ReplaceMethod},
      {"join", JoinMethod},
      {"ljust", Justify<'<'>},
      {"rjust", Justify<'>'>},
      {"center", Justify<'^'>},
      {"zfill", ZeroFill},
      {"partition", Partition<false>},
      {"rpartition", Partition<true>},
      {"removeprefix", RemovePrefix},
      {"removesuffix", RemoveSuffix},
      {"expandtabs", ExpandTabs},
      {"format", FormatMethod},
      {"format_map", FormatMap},
      {"isspace", AllOf<kCharSpace>},
      {"isprintable", AllOf<kCharPrintable>},
      {"isalpha", AllOf<kCharAlpha>},
      {"isdecimal", AllOf<kCharDecimal>},
      {"isdigit", AllOf<kCharDigit>},
      {"isnumeric", AllOf<kCharNumeric>},
      {"isalnum", AllOf<kCharAlpha | kCharDecimal | kCharDigit | kCharNumeric>},
      {"isupper", IsCase<true>},
      {"islower", IsCase<false>},
      {"istitle", IsTitle},
      {"isascii", IsAscii},
      {"isidentifier", IsIdentifier},
  };
  const auto found = kMethods.find(name);
  return found == kMethods.end() ? nullptr : found->second;
}

}  // namespace celer::jinja
