// Normalization, before a text is split: the "normalizer" of tokenizer.json.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/json/json.h"
#include "text/regex/regex.h"
#include "text/unicode/unicode.h"

namespace celer {

// A section of text between added tokens, on its way to the model.
struct Stretch {
  std::string text;      // valid UTF-8, unless the tokenizer keeps raw bytes
  bool at_start = true;  // its first byte comes from the first byte of the whole input
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void Apply(Stretch& stretch, RegexBudget& budget) const = 0;
};

// null when the JSON is null. `where` names the file.
Result<std::unique_ptr<Normalizer>> ParseNormalizer(const nlohmann::json& json, const std::string& where,
                                                    int depth = 0);

// "{"String": ...}" or "{"Regex": ...}", as Replace and Split have it.
Result<Regex> ParsePattern(const nlohmann::json& json, const std::string& where);

// The text with all matches replaced; `content` is literal.
std::string ReplaceAll(std::string_view text, const Regex& pattern, std::string_view content,
                       RegexBudget& budget);
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

// only_first: only before a stretch that begins the whole input.
std::unique_ptr<Normalizer> MakePrepend(std::string prefix, bool only_first = false);
std::unique_ptr<Normalizer> MakeReplace(std::string from, std::string to);
// Those of bert_normalizer.cc.
Result<std::unique_ptr<Normalizer>> ParseBertNormalizer(const JsonFields& fields);
Result<std::unique_ptr<Normalizer>> ParsePrecompiledNormalizer(const JsonFields& fields);
std::unique_ptr<Normalizer> MakeNmtNormalizer();
std::unique_ptr<Normalizer> MakeSequence(std::vector<std::unique_ptr<Normalizer>> steps);

}  // namespace celer
