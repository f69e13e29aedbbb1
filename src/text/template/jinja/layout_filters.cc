// Filters that lay text out: wordwrap as Python's textwrap, pprint as Python's pprint, and sizes of files.
#include "text/template/jinja/layout_filters.h"

#include <algorithm>
#include <cmath>

#include "text/template/jinja/builtins.h"
#include "text/template/jinja/format.h"
#include "text/template/jinja/interpreter.h"
#include "text/template/jinja/str_tools.h"
#include "text/template/jinja/unicode.h"

namespace celer::jinja {
namespace {

// --- wordwrap ---

// A line as code points, so that widths are counted and neighbours looked at in one step.
class LineWrapper {
 public:
  LineWrapper(std::string_view line, int64_t width, bool break_words, bool break_hyphens)
      : width_(width), break_words_(break_words), break_hyphens_(break_hyphens) {
    for (size_t i = 0, n; i < line.size(); i += n) {
      characters_.push_back(DecodeAt(line, i, &n));
      offsets_.push_back(i);
    }
    offsets_.push_back(line.size());
    line_ = line;
  }

  std::vector<std::string> Run() {
    for (size_t at = 0; at < characters_.size();) {
      const size_t end = ChunkEnd(at);
      chunks_.push_back({at, end});
      at = end;
    }
    size_t next = 0;
    while (next < chunks_.size()) NextLine(next);
    return std::move(lines_);
  }

 private:
  struct Chunk {
    size_t begin, end;
    int64_t size() const { return static_cast<int64_t>(end - begin); }
  };

  bool InRange(size_t i) const { return i < characters_.size(); }
  bool IsBlank(size_t i) const {
    const uint32_t c = characters_[i];
    return c == ' ' || (c >= '\t' && c <= '\r');
  }
  bool IsDash(size_t i) const { return InRange(i) && characters_[i] == '-'; }
  bool IsLetter(size_t i) const {
    return InRange(i) && IsWord(characters_[i]) && (CharClass(characters_[i]) & kCharDecimal) == 0;
  }
  bool IsWordPunctuation(size_t i) const {
    const uint32_t c = characters_[i];
    return IsWord(c) ||
           (c < 0x80 && std::string_view("!\"'&.,?").find(static_cast<char>(c)) != std::string_view::npos);
  }
  // The end of two or more dashes that a word follows; `at` if there are none.
  size_t DashEnd(size_t at) const {
    size_t end = at;
    while (IsDash(end)) ++end;
    return end >= at + 2 && InRange(end) && IsWord(characters_[end]) ? end : at;
  }
  // A dash at `at` inside a hyphenated word, after which the word may be broken.
  bool IsHyphen(size_t at) const {
    if (!IsDash(at)) return false;
    const bool before = (at >= 2 && IsLetter(at - 1) && IsLetter(at - 2)) ||
                        (at >= 3 && IsWordPunctuation(at - 1) && IsDash(at - 2) && IsLetter(at - 3));
    return before && IsLetter(at + 1) && (IsLetter(at + 2) || (IsDash(at + 2) && IsLetter(at + 3)));
  }

  size_t ChunkEnd(size_t at) const {
    size_t end = at;
    if (IsBlank(at)) {
      while (InRange(end) && IsBlank(end)) ++end;
      return end;
    }
    if (!break_hyphens_) {
      while (InRange(end) && !IsBlank(end)) ++end;
      return end;
    }
    if (at > 0 && IsDash(at) && IsWordPunctuation(at - 1))
      if (const size_t dashes = DashEnd(at); dashes != at) return dashes;
    for (end = at + 1; InRange(end) && !IsBlank(end); ++end) {
      if (IsHyphen(end)) return end + 1;
      if (IsDash(end) && IsWordPunctuation(end - 1) && DashEnd(end) != end) return end;
    }
    return end;
  }

  bool IsSpaceChunk(const Chunk& chunk) const {
    return std::all_of(characters_.begin() + static_cast<int64_t>(chunk.begin),
                       characters_.begin() + static_cast<int64_t>(chunk.end),
                       [](uint32_t c) { return IsSpace(c); });
  }

  // What of a word too long for a line still fits on this one.
  size_t LongWordEnd(const Chunk& word, int64_t space_left) const {
    size_t end = std::min(word.end, word.begin + static_cast<size_t>(space_left));
    if (!break_hyphens_ || word.size() <= space_left) return end;
    for (size_t hyphen = end; hyphen > word.begin + 1;) {
      if (!IsDash(--hyphen)) continue;
      for (size_t i = word.begin; i < hyphen; ++i)
        if (!IsDash(i)) return hyphen + 1;
      break;
    }
    return end;
  }

  void NextLine(size_t& next) {
    if (!lines_.empty() && IsSpaceChunk(chunks_[next])) ++next;
    std::vector<Chunk> line;
    int64_t length = 0;
    for (; next < chunks_.size() && length + chunks_[next].size() <= width_; ++next) {
      length += chunks_[next].size();
      line.push_back(chunks_[next]);
    }
    if (next < chunks_.size() && chunks_[next].size() > width_) {
      if (break_words_) {
        const size_t end = LongWordEnd(chunks_[next], width_ - length);
        line.push_back({chunks_[next].begin, end});
        chunks_[next].begin = end;
      } else if (line.empty()) {
        line.push_back(chunks_[next++]);
      }
    }
    if (!line.empty() && IsSpaceChunk(line.back())) line.pop_back();
    if (line.empty()) return;
    const size_t from = offsets_[line.front().begin];
    lines_.emplace_back(line_.substr(from, offsets_[line.back().end] - from));
  }

  std::string_view line_;
  const int64_t width_;
  const bool break_words_, break_hyphens_;
  std::vector<uint32_t> characters_;
  std::vector<size_t> offsets_;
  std::vector<Chunk> chunks_;
  std::vector<std::string> lines_;
};

Value WordWrap(Interpreter& in, const Value& v, const Args& args) {
  const auto bound =
      Bind("wordwrap", args, {"width", "break_long_words", "wrapstring", "break_on_hyphens"}, 0);
  const std::string& text = StringArg("wordwrap", &v);
  const int64_t width = IntArg("wordwrap", bound[0], 79);
  const Value newline = bound[2] == nullptr || bound[2]->Is(Kind::kNone) ? in.Text("\n") : *bound[2];
  StringArg("wordwrap", &newline);
  const FilterFn join = FindStringMethod("join");
  std::vector<Value> paragraphs;
  in.budget().Charge(static_cast<int64_t>(text.size()));
  for (const std::string_view line : SplitLines(text, false, in.budget())) {
    if (width <= 0) throw TemplateError("wordwrap needs a width above 0");
    LineWrapper wrapper(line, width, BoolArg(bound[1], true), BoolArg(bound[3], true));
    std::vector<Value> lines;
    for (std::string& wrapped : wrapper.Run()) lines.push_back(in.Text(std::move(wrapped)));
    paragraphs.push_back(join(in, newline, {{MakeList(in.budget(), std::move(lines))}, {}}));
  }
  return join(in, newline, {{MakeList(in.budget(), std::move(paragraphs))}, {}});
}

// --- pprint ---

// Names of Python's types, by which keys that do not compare are sorted.
std::string ClassName(const Value& v) {
  return v.Is(Kind::kNone) ? "NoneType" : TypeName(v);
}

class PrettyPrinter {
 public:
  explicit PrettyPrinter(Interpreter& in) : in_(in) {}

  std::string Run(const Value& value) {
    Format(value, 0, 0, 0);
    return std::move(out_);
  }

 private:
  static constexpr int64_t kWidth = 80;
  using Entries = std::vector<std::pair<Value, Value>>;

  Entries Sorted(const Dict& dict) {
    Entries entries = dict.entries;
    std::stable_sort(entries.begin(), entries.end(), [this](const auto& a, const auto& b) {
      in_.budget().Charge(1);
      try {
        return Compare(a.first, b.first, "<", in_.budget()) == -1;
      } catch (const TemplateError&) {
        in_.budget().Charge(0);  // throws again if it was the budget
        return ClassName(a.first) < ClassName(b.first);
      }
    });
    return entries;
  }

  // repr(), but with the keys of dicts in order.
  std::string Repr(const Value& value) {
    in_.budget().Charge(1);
    std::string out;
    const auto add = [&](const std::string& piece, bool first) {
      in_.budget().ChargeString(static_cast<int64_t>(piece.size()));
      in_.budget().CheckString(static_cast<int64_t>(out.size() + piece.size()));
      if (!first) out += ", ";
      out += piece;
    };
    if (value.Is(Kind::kDict)) {
      out += '{';
      for (const auto& [key, item] : Sorted(value.dict()))
        add(Repr(key) + ": " + Repr(item), out.size() == 1);
      return out += '}';
    }
    if (value.Is(Kind::kList) || value.Is(Kind::kTuple)) {
      const auto& items = value.sequence().items;
      const bool list = value.Is(Kind::kList);
      out += list ? '[' : '(';
      for (const Value& item : items) add(Repr(item), out.size() == 1);
      if (!list && items.size() == 1) out += ',';
      return out += list ? ']' : ')';
    }
    return in_.Repr(value);
  }

  void Write(std::string_view text) {
    in_.budget().ChargeString(static_cast<int64_t>(text.size()));
    in_.budget().CheckString(static_cast<int64_t>(out_.size() + text.size()));
    out_ += text;
  }
  void NewLine(int64_t indent) { Write("\n" + std::string(static_cast<size_t>(indent), ' ')); }

  void Format(const Value& value, int64_t indent, int64_t allowance, int level) {
    const std::string repr = Repr(value);
    if (CountCodePoints(repr) <= kWidth - indent - allowance) return Write(repr);
    ++level;
    if (value.Is(Kind::kDict)) {
      FormatDict(value.dict(), indent, allowance + 1, level);
    } else if (value.Is(Kind::kList)) {
      Write("[");
      FormatItems(value, indent, allowance + 1, level);
      Write("]");
    } else if (value.Is(Kind::kTuple)) {
      const bool one = value.sequence().items.size() == 1;
      Write("(");
      FormatItems(value, indent, allowance + (one ? 2 : 1), level);
      Write(one ? ",)" : ")");
    } else if (value.Is(Kind::kString) && !value.string().markup) {
      FormatString(value.text(), indent, allowance, level);
    } else {
      Write(repr);
    }
  }

  void FormatDict(const Dict& dict, int64_t indent, int64_t allowance, int level) {
    Write("{");
    ++indent;
    const Entries entries = Sorted(dict);
    for (size_t i = 0; i < entries.size(); ++i) {
      const bool last = i + 1 == entries.size();
      const std::string key = Repr(entries[i].first);
      Write(key + ": ");
      Format(entries[i].second, indent + CountCodePoints(key) + 2, last ? allowance : 1, level);
      if (last) break;
      Write(",");
      NewLine(indent);
    }
    Write("}");
  }

  void FormatItems(const Value& value, int64_t indent, int64_t allowance, int level) {
    ++indent;
    const auto& items = value.sequence().items;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) {
        Write(",");
        NewLine(indent);
      }
      Format(items[i], indent, i + 1 == items.size() ? allowance : 1, level);
    }
  }

  std::string Quoted(std::string_view text) { return in_.Repr(in_.Text(std::string(text))); }

  // Alternating words and spaces: \S*\s*
  static std::vector<std::string_view> Parts(std::string_view line) {
    std::vector<std::string_view> parts;
    for (size_t at = 0, n; at < line.size();) {
      size_t end = at;
      while (end < line.size() && !IsSpace(DecodeAt(line, end, &n))) end += n;
      while (end < line.size() && IsSpace(DecodeAt(line, end, &n))) end += n;
      parts.push_back(line.substr(at, end - at));
      at = end;
    }
    return parts;
  }

  void FormatString(const std::string& text, int64_t indent, int64_t allowance, int level) {
    if (level == 1) {
      ++indent;
      ++allowance;
    }
    std::vector<std::string> chunks;
    std::string repr;
    const auto lines = SplitLines(text, true, in_.budget());
    for (size_t i = 0; i < lines.size(); ++i) {
      const bool last_line = i + 1 == lines.size();
      repr = Quoted(lines[i]);
      if (CountCodePoints(repr) <= kWidth - indent - (last_line ? allowance : 0)) {
        chunks.push_back(repr);
        continue;
      }
      const auto parts = Parts(lines[i]);
      std::string current;
      for (size_t j = 0; j < parts.size(); ++j) {
        const int64_t room = kWidth - indent - (last_line && j + 1 == parts.size() ? allowance : 0);
        std::string candidate = current + std::string(parts[j]);
        if (CountCodePoints(Quoted(candidate)) > room) {
          if (!current.empty()) chunks.push_back(Quoted(current));
          current = parts[j];
        } else {
          current = std::move(candidate);
        }
      }
      if (!current.empty()) chunks.push_back(Quoted(current));
    }
    if (chunks.size() == 1) return Write(repr);
    if (level == 1) Write("(");
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i != 0) NewLine(indent);
      Write(chunks[i]);
    }
    if (level == 1) Write(")");
  }

  Interpreter& in_;
  std::string out_;
};

Value PPrint(Interpreter& in, const Value& v, const Args& args) {
  Bind("pprint", args, {}, 0);
  return in.Text(PrettyPrinter(in).Run(v));
}

// --- filesizeformat ---

Value FileSizeFormat(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("filesizeformat", args, {"binary"}, 0);
  if (v.Is(Kind::kUndefined)) throw TemplateError(v.undefined_reason());
  std::optional<double> size;
  if (v.IsNumber()) size = v.AsDouble();
  if (v.Is(Kind::kString)) size = ParseFloat(v.text());
  if (!size) throw TemplateError("filesizeformat needs a number, not " + in.Repr(v));
  const bool binary = BoolArg(bound[0], false);
  const Int base = binary ? 1024 : 1000;
  if (*size == 1) return in.Text("1 Byte");
  if (*size < static_cast<double>(base)) {
    // Adding 0 takes the sign off a -0, as int() does.
    if (std::isinf(*size)) throw TemplateError("filesizeformat needs a finite number");
    return in.Text(FormatSpec(Value::Float(std::trunc(*size) + 0.0), ".0f", in.budget()) + " Bytes");
  }
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  Int unit = base * base;
  size_t i = 0;
  for (; i + 1 < kPrefixes.size() && !(*size < static_cast<double>(unit)); ++i) unit *= base;
  const double shown = static_cast<double>(base) * *size / static_cast<double>(unit);
  const char prefix = binary && i == 0 ? 'K' : kPrefixes[i];
  return in.Text(FormatSpec(Value::Float(shown), ".1f", in.budget()) + " " + prefix + (binary ? "iB" : "B"));
}

}  // namespace

FilterFn FindLayoutFilter(std::string_view name) {
  if (name == "filesizeformat") return FileSizeFormat;
  if (name == "pprint") return PPrint;
  if (name == "wordwrap") return WordWrap;
  return nullptr;
}

}  // namespace celer::jinja
