// Pre-tokenization: how a text is split into the pieces that a model sees one by one, the "pre_tokenizer" of
// tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/json/json.h"
#include "text/regex/regex.h"

namespace celer {

// Pieces of one text. Steps that cut only change the ranges; steps that rewrite make a new text. Ranges are
// never empty and do not overlap.
struct Pieces {
  struct Range {
    size_t begin, end;
    bool at_start;  // begins with the first byte of the whole input
  };
  std::string text;
  std::vector<Range> ranges;

  std::string_view Get(const Range& range) const {
    return std::string_view(text).substr(range.begin, range.end - range.begin);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void Apply(Pieces& pieces, RegexBudget& budget) const = 0;
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// null when the JSON is null.
Result<std::unique_ptr<PreTokenizer>> ParsePreTokenizer(const nlohmann::json& json, const std::string& where,
                                                        int depth = 0);

// Each regex isolates its matches in turn, then the bytes are written in GPT-2's alphabet (unless not asked).
Result<std::unique_ptr<PreTokenizer>> MakeSplits(const std::vector<std::string>& regexes, bool byte_level);

}  // namespace celer
