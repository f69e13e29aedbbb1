#include "text/tokenizer/added_tokens.h"

#include "base/utf8.h"

namespace celer {

Result<AddedTokens> AddedTokens::Make(std::vector<AddedToken> tokens, const Normalizer* normalizer) {
  AddedTokens made;
  made.tokens_ = std::move(tokens);
  for (size_t i = 0; i < made.tokens_.size(); ++i) {
    AddedToken& token = made.tokens_[i];
    token.text = token.content;
    made.by_id_[token.id] = i;
    made.by_content_[token.content] = i;
  }
  for (size_t i = 0; i < made.tokens_.size(); ++i) {
    AddedToken& token = made.tokens_[i];
    if (made.by_content_[token.content] != i) continue;
    if (token.single_word && !made.word_) {
      CELER_ASSIGN(made.word_, Regex::Compile(kRustWordClass));
    }
    if (!token.normalized) {
      made.raw_.Insert(token.content, static_cast<int32_t>(i));
      continue;
    }
    Stretch content{token.content};
    RegexBudget budget(content.text.size());
    if (normalizer) normalizer->Apply(content, budget);
    made.normalized_.Insert(content.text, static_cast<int32_t>(i));
    token.text = std::move(content.text);
  }
  return made;
}

const AddedToken* AddedTokens::Find(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it == by_content_.end() ? nullptr : &tokens_[it->second];
}

bool AddedTokens::Wanted(const AddedToken& token, std::string_view text, size_t begin, size_t end,
                         bool parse_special) const {
  if (token.special && !parse_special) return false;
  if (!token.single_word) return true;
  size_t previous = begin;
  if (begin > 0) do
      --previous;
    while (previous > 0 && utf8::IsContinuation(text[previous]));
  return (begin == 0 || !word_->MatchesStart(text.substr(previous))) &&
         (end == text.size() || !word_->MatchesStart(text.substr(end)));
}

}  // namespace celer
