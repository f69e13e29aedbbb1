#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <optional>

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode/unicode_tables.h"

namespace celer {
namespace {

using nlohmann::json;
using Made = std::unique_ptr<PreTokenizer>;

constexpr int kMaxPreTokenizerDepth = 16;
constexpr char kGpt2Regex[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Punctuation as of Unicode 8, and numbers as of Unicode 17: what the Hugging Face package has for these
// steps.
constexpr char kPunctuation[] =
    R"((?![\x{61d}\x{9fd}\x{a76}\x{c77}\x{c84}\x{1b4e}-\x{1b4f}\x{1b7d}-\x{1b7f}\x{2e43}-\x{2e4f})"
    R"(\x{2e52}-\x{2e5d}\x{10d6e}\x{10ead}\x{10f55}-\x{10f59}\x{10f86}-\x{10f89}\x{113d4}-\x{113d5})"
    R"(\x{113d7}-\x{113d8}\x{1144b}-\x{1144f}\x{1145a}-\x{1145b}\x{1145d}\x{11660}-\x{1166c}\x{116b9})"
    R"(\x{1183b}\x{11944}-\x{11946}\x{119e2}\x{11a3f}-\x{11a46}\x{11a9a}-\x{11a9c}\x{11a9e}-\x{11aa2})"
    R"(\x{11b00}-\x{11b09}\x{11be1}\x{11c41}-\x{11c45}\x{11c70}-\x{11c71}\x{11ef7}-\x{11ef8})"
    R"(\x{11f43}-\x{11f4f}\x{11fff}\x{12ff1}-\x{12ff2}\x{16d6d}-\x{16d6f}\x{16e97}-\x{16e9a}\x{16fe2})"
    R"(\x{1e5ff}\x{1e95e}-\x{1e95f}]))"
    R"([!-/:-@\[-`{-~\p{P}\x{166d}\x{111c9}])";
constexpr char kNumber[] = R"([\p{N}\x{11de0}-\x{11de9}\x{16ff4}-\x{16ff6}])";

// Cuts each range at the matches of a pattern.
class Split : public PreTokenizer {
 public:
  Split(Regex pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void Apply(Pieces& pieces, RegexBudget& budget) const override {
    std::vector<Pieces::Range> out;
    out.reserve(pieces.ranges.size() * 2);
    Regex::Matches matches;
    std::vector<Part> parts;
    for (const Pieces::Range& range : pieces.ranges) {
      const std::string_view text = pieces.Get(range);
      matches.clear();
      pattern_.FindAll(text, budget, matches);
      Cover(text.size(), matches, parts);
      Merge(parts);
      for (const Part& part : parts) {
        if (part.begin == part.end || (behavior_ == SplitBehavior::kRemoved && part.match)) continue;
        out.push_back({range.begin + part.begin, range.begin + part.end, range.at_start && part.begin == 0});
      }
    }
    pieces.ranges = std::move(out);
  }

 private:
  struct Part {
    size_t begin, end;
    bool match;
  };

  // The whole text as matching and not matching parts.
  void Cover(size_t size, const Regex::Matches& matches, std::vector<Part>& parts) const {
    parts.clear();
    size_t at = 0;
    for (const auto& [begin, end] : matches) {
      if (at != begin) parts.push_back({at, begin, invert_});
      parts.push_back({begin, end, !invert_});
      at = end;
    }
    if (at != size) parts.push_back({at, size, invert_});
  }

  void Merge(std::vector<Part>& parts) const {
    if (behavior_ == SplitBehavior::kIsolated || behavior_ == SplitBehavior::kRemoved) return;
    const bool backward = behavior_ == SplitBehavior::kMergedWithNext;
    if (backward) std::reverse(parts.begin(), parts.end());
    size_t out = 0;
    bool previous = false;  // was the part before a match?
    for (const Part part : parts) {
      const bool join =
          behavior_ == SplitBehavior::kContiguous ? part.match == previous : part.match && !previous;
      if (join && out > 0) {
        Part& into = parts[out - 1];
        (backward ? into.begin : into.end) = backward ? part.begin : part.end;
      } else {
        parts[out++] = part;
      }
      previous = part.match;
    }
    parts.resize(out);
    if (backward) std::reverse(parts.begin(), parts.end());
  }

  Regex pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// A step that rewrites every range: f(text of the range, its range, out).
template <class F>
void Rewrite(Pieces& pieces, F&& f) {
  std::string text;
  text.reserve(pieces.text.size() * 2);
  for (Pieces::Range& range : pieces.ranges) {
    const size_t begin = text.size();
    f(pieces.Get(range), range, text);
    range.begin = begin;
    range.end = text.size();
  }
  pieces.text = std::move(text);
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::optional<Split> split)
      : add_prefix_space_(add_prefix_space), split_(std::move(split)) {}

  void Apply(Pieces& pieces, RegexBudget& budget) const override {
    if (add_prefix_space_)
      Rewrite(pieces, [](std::string_view in, const Pieces::Range&, std::string& out) {
        if (!in.starts_with(' ')) out += ' ';
        out += in;
      });
    if (split_) split_->Apply(pieces, budget);
    Rewrite(pieces, [](std::string_view in, const Pieces::Range&, std::string& out) {
      const auto& alphabet = ByteLevelAlphabet();
      for (const char byte : in) utf8::Append(alphabet[static_cast<uint8_t>(byte)], out);
    });
  }

 private:
  bool add_prefix_space_;
  std::optional<Split> split_;
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string replacement, Prepend prepend, std::optional<Split> split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(std::move(split)) {}

  void Apply(Pieces& pieces, RegexBudget& budget) const override {
    Rewrite(pieces, [&](std::string_view in, const Pieces::Range& range, std::string& out) {
      const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && range.at_start);
      if (wanted && !in.starts_with(' ') && !in.starts_with(replacement_)) out += replacement_;
      for (const char c : in) {
        if (c == ' ')
          out += replacement_;
        else
          out += c;
      }
    });
    if (split_) split_->Apply(pieces, budget);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  std::optional<Split> split_;
};

// Runs of one script. The Japanese ones count as Han; spaces and unassigned characters belong to any script,
// and those before the first script are lost, as in the original.
class UnicodeScripts : public PreTokenizer {
 public:
  void Apply(Pieces& pieces, RegexBudget&) const override {
    std::vector<Pieces::Range> out;
    for (const Pieces::Range& range : pieces.ranges) {
      const std::string_view text = pieces.Get(range);
      int last = kAny;
      size_t begin = text.size();
      const auto cut = [&](size_t end) {
        if (begin < end)
          out.push_back({range.begin + begin, range.begin + end, range.at_start && begin == 0});
        begin = end;
      };
      for (size_t at = 0; at < text.size();) {
        const utf8::CodePoint c = utf8::Decode(text.substr(at));
        if (const int script = ScriptOf(c.value); script != kAny) {
          if (last == kAny)
            begin = at;
          else if (script != last)
            cut(at);
          last = script;
        }
        at += c.length;
      }
      cut(text.size());
    }
    pieces.ranges = std::move(out);
  }

 private:
  static constexpr int kAny = 0;
  static int ScriptOf(char32_t c) {
    const unicode::CharRange* range = unicode::FindRange(unicode::BuiltInTables().scripts, c);
    return range == nullptr ? kAny : static_cast<int>(range->value);
  }
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(int64_t length) : length_(length) {}
  void Apply(Pieces& pieces, RegexBudget&) const override {
    std::vector<Pieces::Range> out;
    for (const Pieces::Range& range : pieces.ranges) {
      const std::string_view text = pieces.Get(range);
      int64_t characters = 0;
      for (size_t at = 0; at < text.size(); ++at) {
        if (utf8::IsContinuation(text[at])) continue;
        if (characters++ % length_ != 0) continue;
        if (at != 0) out.back().end = range.begin + at;
        out.push_back({range.begin + at, range.end, range.at_start && at == 0});
      }
    }
    pieces.ranges = std::move(out);
  }

 private:
  int64_t length_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<Made> steps) : steps_(std::move(steps)) {}
  void Apply(Pieces& pieces, RegexBudget& budget) const override {
    for (const Made& step : steps_) step->Apply(pieces, budget);
  }

 private:
  std::vector<Made> steps_;
};

Result<Split> MakeSplit(std::string_view regex, SplitBehavior behavior, bool invert = false) {
  CELER_ASSIGN(Regex compiled, Regex::Compile(regex));
  return Split(std::move(compiled), behavior, invert);
}

Result<Made> MakeSplitStep(std::string_view regex, SplitBehavior behavior, bool invert = false) {
  CELER_ASSIGN(Split split, MakeSplit(regex, behavior, invert));
  return Made(new Split(std::move(split)));
}

Result<SplitBehavior> ParseBehavior(const JsonFields& fields, std::string if_missing) {
  CELER_ASSIGN(const std::string name, fields.GetString("behavior", std::move(if_missing)));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return Error::Corrupt(fields.where(), ": 'behavior' is '", name, "', which is none of Removed, Isolated, ",
                        "MergedWithPrevious, MergedWithNext, Contiguous");
}

Result<Made> ParseMetaspace(const JsonFields& fields) {
  CELER_ASSIGN(std::string replacement, fields.GetString("replacement", "\u2581"));
  if (replacement.empty() || utf8::Decode(replacement).length != replacement.size())
    return Error::Corrupt(fields.where(), ": 'replacement' of Metaspace is not one character");
  // Files from before 2024 have add_prefix_space instead of prepend_scheme.
  CELER_ASSIGN(const bool add_prefix_space, fields.GetBool("add_prefix_space", true));
  CELER_ASSIGN(const std::string scheme,
               fields.GetString("prepend_scheme", add_prefix_space ? "always" : "never"));
  Metaspace::Prepend prepend;
  if (scheme == "always")
    prepend = Metaspace::Prepend::kAlways;
  else if (scheme == "first")
    prepend = Metaspace::Prepend::kFirst;
  else if (scheme == "never")
    prepend = Metaspace::Prepend::kNever;
  else
    return Error::Corrupt(fields.where(), ": 'prepend_scheme' is '", scheme, "', not always, first or never");
  CELER_ASSIGN(const bool cut, fields.GetBool("split", true));
  std::optional<Split> split;
  if (cut) {
    CELER_ASSIGN(split, MakeSplit(EscapeRegex(replacement), SplitBehavior::kMergedWithNext));
  }
  return Made(new Metaspace(std::move(replacement), prepend, std::move(split)));
}

Result<Made> ParseByteLevel(const JsonFields& fields) {
  CELER_ASSIGN(const bool prefix, fields.GetBool("add_prefix_space", true));
  CELER_ASSIGN(const bool use_regex, fields.GetBool("use_regex", true));
  std::optional<Split> split;
  if (use_regex) {
    CELER_ASSIGN(split, MakeSplit(kGpt2Regex, SplitBehavior::kIsolated));
  }
  return Made(new ByteLevel(prefix, std::move(split)));
}

Result<Made> MakePunctuation(SplitBehavior behavior) {
  return MakeSplitStep(kPunctuation, behavior);
}

}  // namespace

Result<Made> MakeSplits(const std::vector<std::string>& regexes, bool byte_level) {
  std::vector<Made> steps;
  for (const std::string& regex : regexes) {
    CELER_ASSIGN(Made step, MakeSplitStep(regex, SplitBehavior::kIsolated));
    steps.push_back(std::move(step));
  }
  if (byte_level) steps.push_back(std::make_unique<ByteLevel>(false, std::nullopt));
  return Made(new PreTokenizerSequence(std::move(steps)));
}

Result<Made> ParsePreTokenizer(const json& spec, const std::string& where, int depth) {
  if (spec.is_null()) return Made();
  if (depth > kMaxPreTokenizerDepth)
    return Error::Corrupt(where, ": the pre_tokenizer is nested deeper than ", kMaxPreTokenizerDepth);
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(spec, where + ": 'pre_tokenizer'"));
  CELER_ASSIGN(const std::string type, fields.GetString("type"));
  if (type == "ByteLevel") return ParseByteLevel(fields);
  if (type == "Metaspace") return ParseMetaspace(fields);
  if (type == "Split") {
    const json* pattern = fields.Find("pattern");
    if (!pattern) return Error::Corrupt(fields.where(), " of type Split has no 'pattern'");
    CELER_ASSIGN(Regex regex, ParsePattern(*pattern, fields.where()));
    CELER_ASSIGN(const SplitBehavior behavior, ParseBehavior(fields, "Removed"));
    CELER_ASSIGN(const bool invert, fields.GetBool("invert", false));
    return Made(new Split(std::move(regex), behavior, invert));
  }
  if (type == "Digits") {
    CELER_ASSIGN(const bool individual, fields.GetBool("individual_digits", false));
    return MakeSplitStep(kNumber, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    CELER_ASSIGN(const SplitBehavior behavior, ParseBehavior(fields, "Isolated"));
    return MakePunctuation(behavior);
  }
  if (type == "Whitespace")
    return MakeSplitStep(std::string(kRustWordClass) + "+|(?:(?!" + std::string(kRustWordClass) + ")\\S)+",
                         SplitBehavior::kRemoved, true);
  if (type == "WhitespaceSplit") return MakeSplitStep("\\s", SplitBehavior::kRemoved);
  if (type == "BertPreTokenizer") {
    std::vector<Made> steps;
    CELER_ASSIGN(Made space, MakeSplitStep("\\s", SplitBehavior::kRemoved));
    CELER_ASSIGN(Made punctuation, MakePunctuation(SplitBehavior::kIsolated));
    steps.push_back(std::move(space));
    steps.push_back(std::move(punctuation));
    return Made(new PreTokenizerSequence(std::move(steps)));
  }
  if (type == "CharDelimiterSplit") {
    CELER_ASSIGN(const std::string delimiter, fields.GetString("delimiter"));
    return MakeSplitStep(EscapeRegex(delimiter), SplitBehavior::kRemoved);
  }
  if (type == "UnicodeScripts") return Made(new UnicodeScripts());
  if (type == "FixedLength") {
    CELER_ASSIGN(const int64_t length, fields.GetInt("length", 1, INT32_MAX, 5));
    return Made(new FixedLength(length));
  }
  if (type == "Sequence") {
    const json* list = fields.Find("pretokenizers");
    if (!list || !list->is_array()) return Error::Corrupt(fields.where(), ": 'pretokenizers' is not a list");
    std::vector<Made> steps;
    for (const json& step : *list) {
      CELER_ASSIGN(Made made, ParsePreTokenizer(step, where, depth + 1));
      if (made) steps.push_back(std::move(made));
    }
    return Made(new PreTokenizerSequence(std::move(steps)));
  }
  return Error::Unsupported(
      where, ": pre_tokenizer '", type,
      "' is not supported (ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, "
      "WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit, UnicodeScripts, FixedLength and Sequence are)");
}

}  // namespace celer
