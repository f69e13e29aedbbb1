// What comes from outside must not be able to say a control token: a message that contains "<|im_end|>" would
// end its own turn and begin another's.
//
// A conversation goes through a template before it becomes tokens, and a template may trim, cut and join what
// it is given. So each special-token string in it is replaced by one code point, a mark, before, and put back
// after, when it is known which bytes of the prompt are the template's own words. A mark also stands at the
// edge of a string that could become a control token together with its neighbour.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer/model/trie.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {

// The special-token strings of a vocabulary, and how a template could complete them. Immutable.
class SpecialStrings {
 public:
  // `template_source` is trusted: what it says stays.
  SpecialStrings(const Tokenizer& tokenizer, std::string_view template_source);

  // The length of the longest special string that `text` starts with, or 0.
  size_t LongestAt(std::string_view text) const;
  // Whether text ends with a proper prefix of one.
  bool EndsWithSpecialPrefix(std::string_view text) const;
  // Whether this text begins with a suffix that would complete one whose prefix the template writes: "<" +
  // "s" + ">".
  bool TemplateMayComplete(std::string_view text) const;
  // Code points that cannot be marks: the template or a special string has them.
  const std::set<char32_t>& taken() const { return taken_; }

 private:
  Trie all_;
  size_t longest_ = 0;
  std::set<std::string, std::less<>> beginnings_;  // all but the whole of each
  std::set<std::string, std::less<>> rests_;       // behind a beginning that the template ends a part with
  std::set<char32_t> taken_;
};

// Hides the special strings of one conversation and finds them again in the prompt.
class SpecialHider {
 public:
  explicit SpecialHider(const SpecialStrings& special) : special_(special) {}

  // Every string and every key, at any depth up to kMaxDepth, below which it is an error.
  static constexpr int kMaxDepth = 64;
  Status Hide(nlohmann::ordered_json* value) { return Hide(value, 1); }
  // The same, except that the role of each message stays, if it is one that is known.
  Status HideMessages(nlohmann::ordered_json* messages);

  // The text with what was hidden put back in, and where that is.
  struct Revealed {
    std::string text;
    std::vector<TextRange> plain;  // as EncodeOptions takes it
  };
  Revealed Reveal(std::string_view text) const;

 private:
  Status Hide(nlohmann::ordered_json* value, int depth);
  Result<std::string> HideIn(std::string_view text);
  Result<std::string> MarkFor(std::string_view hidden);  // "": an edge

  const SpecialStrings& special_;
  std::map<std::string, char32_t, std::less<>> marks_;
  std::map<char32_t, std::string> hidden_;
  char32_t next_ = kFirstMark;

  // Supplementary Private Use Area-B. A text that has such code points itself gets marks for them, too.
  static constexpr char32_t kFirstMark = 0x100000, kLastMark = 0x10FFFD;
};

}  // namespace celer
