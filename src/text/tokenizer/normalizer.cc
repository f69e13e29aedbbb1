#include "text/tokenizer/normalizer.h"

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"

namespace celer {
namespace {

using nlohmann::json;

constexpr int kMaxNormalizerDepth = 16;

// Combining marks as of Unicode 9, which is what StripAccents knows in the Hugging Face package.
constexpr char kMarks[] =
    R"((?![\x{7fd}\x{897}-\x{89f}\x{8ca}-\x{8d3}\x{9fe}\x{afa}-\x{aff}\x{b55}\x{c04}\x{c3c}\x{cf3}\x{d00})"
    R"(\x{d3b}-\x{d3c}\x{d81}\x{eba}\x{ece}\x{1715}\x{180f}\x{1abf}-\x{1ace}\x{1cf7}\x{1df6}-\x{1dfa})"
    R"(\x{a82c}\x{a8ff}\x{10d24}-\x{10d27}\x{10d69}-\x{10d6d}\x{10eab}-\x{10eac}\x{10efc}-\x{10eff})"
    R"(\x{10f46}-\x{10f50}\x{10f82}-\x{10f85}\x{11070}\x{11073}-\x{11074}\x{110c2}\x{11145}-\x{11146})"
    R"(\x{111c9}\x{111ce}-\x{111cf}\x{11241}\x{1133b}\x{113b8}-\x{113c0}\x{113c2}\x{113c5})"
    R"(\x{113c7}-\x{113ca}\x{113cc}-\x{113d0}\x{113d2}\x{113e1}-\x{113e2}\x{1145e}\x{1182c}-\x{1183a})"
    R"(\x{11930}-\x{11935}\x{11937}-\x{11938}\x{1193b}-\x{1193e}\x{11940}\x{11942}-\x{11943})"
    R"(\x{119d1}-\x{119d7}\x{119da}-\x{119e0}\x{119e4}\x{11a01}-\x{11a0a}\x{11a33}-\x{11a39})"
    R"(\x{11a3b}-\x{11a3e}\x{11a47}\x{11a51}-\x{11a5b}\x{11a8a}-\x{11a99}\x{11d31}-\x{11d36}\x{11d3a})"
    R"(\x{11d3c}-\x{11d3d}\x{11d3f}-\x{11d45}\x{11d47}\x{11d8a}-\x{11d8e}\x{11d90}-\x{11d91})"
    R"(\x{11d93}-\x{11d97}\x{11ef3}-\x{11ef6}\x{11f00}-\x{11f01}\x{11f03}\x{11f34}-\x{11f3a})"
    R"(\x{11f3e}-\x{11f42}\x{11f5a}\x{13440}\x{13447}-\x{13455}\x{1611e}-\x{1612f}\x{16f4f})"
    R"(\x{16f7f}-\x{16f87}\x{16fe4}\x{16ff0}-\x{16ff1}\x{1cf00}-\x{1cf2d}\x{1cf30}-\x{1cf46}\x{1e08f})"
    R"(\x{1e130}-\x{1e136}\x{1e2ae}\x{1e2ec}-\x{1e2ef}\x{1e4ec}-\x{1e4ef}\x{1e5ee}-\x{1e5ef}])[\p{M}\x{1cf2}\x{1cf3}])";

class Unicode : public Normalizer {
 public:
  explicit Unicode(unicode::Form form) : form_(form) {}
  void Apply(Stretch& s, RegexBudget&) const override { s.text = unicode::Normalize(s.text, form_); }

 private:
  unicode::Form form_;
};

class Lowercase : public Normalizer {
 public:
  void Apply(Stretch& s, RegexBudget&) const override { s.text = unicode::ToLower(s.text); }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void Apply(Stretch& s, RegexBudget&) const override {
    if (left_) {
      const size_t n = utf8::LeadingSpace(s.text);
      s.text.erase(0, n);
      if (n) s.at_start = false;
    }
    if (right_) s.text.resize(s.text.size() - utf8::TrailingSpace(s.text));
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  Prepend(std::string prefix, bool only_first) : prefix_(std::move(prefix)), only_first_(only_first) {}
  void Apply(Stretch& s, RegexBudget&) const override {
    if (!s.text.empty() && (s.at_start || !only_first_)) s.text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
  bool only_first_;
};

class ReplaceText : public Normalizer {
 public:
  ReplaceText(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  void Apply(Stretch& s, RegexBudget&) const override { s.text = ReplaceAll(s.text, from_, to_); }

 private:
  std::string from_, to_;
};

class ReplaceRegex : public Normalizer {
 public:
  ReplaceRegex(Regex pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(Stretch& s, RegexBudget& budget) const override {
    s.text = ReplaceAll(s.text, pattern_, content_, budget);
  }

 private:
  Regex pattern_;
  std::string content_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void Apply(Stretch& s, RegexBudget&) const override { s.text = ByteLevelEncode(s.text); }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void Apply(Stretch& s, RegexBudget& budget) const override {
    for (const auto& step : steps_) step->Apply(s, budget);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) return std::string(text);
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  for (size_t hit; (hit = text.find(from, at)) != std::string_view::npos; at = hit + from.size()) {
    out += text.substr(at, hit - at);
    out += to;
  }
  out += text.substr(at);
  return out;
}

std::string ReplaceAll(std::string_view text, const Regex& pattern, std::string_view content,
                       RegexBudget& budget) {
  Regex::Matches matches;
  pattern.FindAll(text, budget, matches);
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  for (const auto& [begin, end] : matches) {
    out += text.substr(at, begin - at);
    out += content;
    at = end;
  }
  out += text.substr(at);
  return out;
}

Result<Regex> ParsePattern(const json& pattern, const std::string& where) {
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(pattern, where + ": 'pattern'"));
  std::string source;
  if (fields.Has("String")) {
    CELER_ASSIGN(source, fields.GetString("String"));
    source = EscapeRegex(source);
  } else {
    CELER_ASSIGN(source, fields.GetString("Regex"));
  }
  auto regex = Regex::Compile(source);
  if (!regex) return regex.error().WithContext(where);
  return regex;
}

std::unique_ptr<Normalizer> MakePrepend(std::string prefix, bool only_first) {
  return std::make_unique<Prepend>(std::move(prefix), only_first);
}
std::unique_ptr<Normalizer> MakeReplace(std::string from, std::string to) {
  return std::make_unique<ReplaceText>(std::move(from), std::move(to));
}
std::unique_ptr<Normalizer> MakeSequence(std::vector<std::unique_ptr<Normalizer>> steps) {
  return std::make_unique<NormalizerSequence>(std::move(steps));
}

Result<std::unique_ptr<Normalizer>> ParseNormalizer(const json& spec, const std::string& where, int depth) {
  using Made = std::unique_ptr<Normalizer>;
  if (spec.is_null()) return Made();
  if (depth > kMaxNormalizerDepth)
    return Error::Corrupt(where, ": the normalizer is nested deeper than ", kMaxNormalizerDepth);
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(spec, where + ": 'normalizer'"));
  CELER_ASSIGN(const std::string type, fields.GetString("type"));
  if (type == "NFC") return Made(new Unicode(unicode::Form::kNfc));
  if (type == "NFD") return Made(new Unicode(unicode::Form::kNfd));
  if (type == "NFKC") return Made(new Unicode(unicode::Form::kNfkc));
  if (type == "NFKD") return Made(new Unicode(unicode::Form::kNfkd));
  if (type == "Lowercase") return Made(new Lowercase());
  if (type == "BertNormalizer") return ParseBertNormalizer(fields);
  if (type == "Nmt") return MakeNmtNormalizer();
  if (type == "Precompiled") return ParsePrecompiledNormalizer(fields);
  if (type == "ByteLevel") return Made(new ByteLevelNormalizer());
  if (type == "Strip") {
    CELER_ASSIGN(const bool left, fields.GetBool("strip_left", true));
    CELER_ASSIGN(const bool right, fields.GetBool("strip_right", true));
    return Made(new Strip(left, right));
  }
  if (type == "StripAccents") {
    CELER_ASSIGN(Regex marks, Regex::Compile(kMarks));
    return Made(new ReplaceRegex(std::move(marks), ""));
  }
  if (type == "Prepend") {
    CELER_ASSIGN(std::string prefix, fields.GetString("prepend"));
    return MakePrepend(std::move(prefix));
  }
  if (type == "Replace") {
    CELER_ASSIGN(std::string content, fields.GetString("content"));
    const json* pattern = fields.Find("pattern");
    if (!pattern) return Error::Corrupt(fields.where(), " of type Replace has no 'pattern'");
    if (pattern->is_object() && pattern->contains("String")) {  // the common case, without a regex
      CELER_ASSIGN(const JsonFields parts, JsonFields::Of(*pattern, fields.where()));
      CELER_ASSIGN(std::string from, parts.GetString("String"));
      return MakeReplace(std::move(from), std::move(content));
    }
    CELER_ASSIGN(Regex regex, ParsePattern(*pattern, fields.where()));
    return Made(new ReplaceRegex(std::move(regex), std::move(content)));
  }
  if (type == "Sequence") {
    const json* list = fields.Find("normalizers");
    if (!list || !list->is_array()) return Error::Corrupt(fields.where(), ": 'normalizers' is not a list");
    std::vector<Made> steps;
    for (const json& step : *list) {
      CELER_ASSIGN(Made made, ParseNormalizer(step, where, depth + 1));
      if (made) steps.push_back(std::move(made));
    }
    return MakeSequence(std::move(steps));
  }
  return Error::Unsupported(
      where, ": normalizer '", type,
      "' is not supported (NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, "
      "BertNormalizer, Nmt, Precompiled, ByteLevel and Sequence are)");
}

}  // namespace celer
