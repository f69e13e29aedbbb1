// Added tokens: matched verbatim in the raw text, before normalization and pre-tokenization. Special tokens
// like <|im_end|>, and words that were added to a vocabulary later.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/utf8.h"
#include "text/regex/regex.h"
#include "text/tokenizer/model/trie.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {

struct AddedToken {
  std::string content = {};
  int32_t id = -1;
  bool special = false;
  bool single_word = false;  // only between characters that are not of words
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // is looked for in the normalized text
  std::string text =
      {};  // what it decodes to: the content, normalized if that is asked; AddedTokens fills it
};

class AddedTokens {
 public:
  // `normalizer` may be null. Of tokens with the same content the last counts.
  static Result<AddedTokens> Make(std::vector<AddedToken> tokens, const Normalizer* normalizer);

  // Calls f(token id or -1, part of the text) from left to right; parts are not empty. Which tokens are
  // looked for: those of the raw text (normalized = false), or those of the normalized text. `plain`: as in
  // EncodeOptions.
  template <class F>
  void Split(std::string_view text, bool normalized, bool parse_special, std::span<const TextRange> plain,
             F&& f) const {
    const Trie& trie = normalized ? normalized_ : raw_;
    if (trie.empty()) {
      if (!text.empty()) f(-1, text);
      return;
    }
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      while (!plain.empty() && std::max(plain[0].begin, plain[0].end) <= at) plain = plain.subspan(1);
      const auto hit = FindAt(trie, text, at, plain);
      if (!hit) {
        ++at;
        continue;
      }
      size_t begin = at, end = at + hit->length;
      at = end;
      const AddedToken& token = tokens_[hit->token];
      if (!Wanted(token, text, begin, end, parse_special)) continue;
      if (token.lstrip) begin = std::max(begin - utf8::TrailingSpace(text.substr(0, begin)), done);
      if (token.rstrip) end += utf8::LeadingSpace(text.substr(end));
      if (done < begin) f(-1, text.substr(done, begin - done));
      f(token.id, text.substr(begin, end - begin));
      done = end;
    }
    if (done < text.size()) f(-1, text.substr(done));
  }

  const AddedToken* Find(int32_t id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : &tokens_[it->second];
  }
  const AddedToken* Find(std::string_view content) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  bool has_normalized_special() const {
    return std::any_of(tokens_.begin(), tokens_.end(),
                       [](const AddedToken& token) { return token.special && token.normalized; });
  }

 private:
  struct Hit {
    size_t length;
    int32_t token;
  };
  // The longest match. A control token may not touch the plain ranges, which end after `at`.
  std::optional<Hit> FindAt(const Trie& trie, std::string_view text, size_t at,
                            std::span<const TextRange> plain) const {
    std::optional<Hit> hit;
    if (trie.StartsWith(text[at]))
      trie.ForEachPrefix(text.substr(at), [&](size_t length, int32_t token) {
        const bool touches = !plain.empty() && plain[0].Overlaps(at, at + length);
        if (!touches || !tokens_[token].special) hit = {length, token};
      });
    return hit;
  }
  bool Wanted(const AddedToken& token, std::string_view text, size_t begin, size_t end,
              bool parse_special) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
  Trie raw_, normalized_;
  std::optional<Regex> word_;  // one character of a word; only where a token asks
};

}  // namespace celer
