// Word models: WordLevel, and WordPiece (greedy longest match from the start of a word).
#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/model/model.h"
#include "text/tokenizer/model/trie.h"

namespace celer {
namespace {

class WordLevel : public TokenModel {
 public:
  WordLevel(const Vocabulary& vocabulary, const std::vector<bool>& never, std::optional<int32_t> unk_id)
      : vocabulary_(vocabulary), never_(never), unk_id_(unk_id) {
    never_.resize(vocabulary.size());
  }

  void Tokenize(std::string_view piece, std::vector<int32_t>& out) const override {
    if (const auto id = vocabulary_.Find(piece); id && !never_[*id])
      out.push_back(*id);
    else if (unk_id_)
      out.push_back(*unk_id_);
  }

 private:
  const Vocabulary& vocabulary_;
  std::vector<bool> never_;
  std::optional<int32_t> unk_id_;
};

class WordPiece : public TokenModel {
 public:
  WordPiece(const Vocabulary& vocabulary, const std::vector<bool>& never, const WordPieceOptions& options)
      : options_(options) {
    const std::string_view prefix = options.continuing_subword_prefix;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      if (!vocabulary.Has(id) || (static_cast<size_t>(id) < never.size() && never[id])) continue;
      const std::string_view token = vocabulary.Get(id);
      if (!token.empty()) first_.Insert(token, id);
      if (token.starts_with(prefix) && token.size() > prefix.size())
        rest_.Insert(token.substr(prefix.size()), id);
    }
  }

  void Tokenize(std::string_view piece, std::vector<int32_t>& out) const override {
    const size_t before = out.size();
    const auto characters = static_cast<size_t>(
        std::count_if(piece.begin(), piece.end(), [](char c) { return !utf8::IsContinuation(c); }));
    if (characters <= options_.max_characters && Cut(piece, out)) return;
    out.resize(before);
    if (options_.unk_id) out.push_back(*options_.unk_id);
  }

 private:
  bool Cut(std::string_view piece, std::vector<int32_t>& out) const {
    for (size_t at = 0; at < piece.size();) {
      size_t longest = 0;
      int32_t found = -1;
      (at == 0 ? first_ : rest_).ForEachPrefix(piece.substr(at), [&](size_t size, int32_t id) {
        longest = size;
        found = id;
      });
      if (found < 0) return false;
      out.push_back(found);
      at += longest;
    }
    return true;
  }

  WordPieceOptions options_;
  Trie first_, rest_;  // tokens at the start of a word, and those inside it without their prefix
};

}  // namespace

std::unique_ptr<TokenModel> MakeWordLevel(const Vocabulary& vocabulary, const std::vector<bool>& never,
                                          std::optional<int32_t> unk_id) {
  return std::make_unique<WordLevel>(vocabulary, never, unk_id);
}

std::unique_ptr<TokenModel> MakeWordPiece(const Vocabulary& vocabulary, const std::vector<bool>& never,
                                          const WordPieceOptions& options) {
  return std::make_unique<WordPiece>(vocabulary, never, options);
}

}  // namespace celer
