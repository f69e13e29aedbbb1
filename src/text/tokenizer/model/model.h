// The model of a tokenizer, which turns one pre-token into token ids: BPE by merges, BPE by scores, unigram,
// or words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace celer {

// Token strings and their ids. Ids are dense enough to be indices; a gap has no string.
class Vocabulary {
 public:
  // The ids that `count` tokens may have: real files leave small gaps, and a hostile one may not make us
  // allocate for a token with id 2^31.
  static int64_t IdLimit(size_t count) { return static_cast<int64_t>(count) * 4 + 65536; }

  // False when the id is taken by another string. A string that is there already moves to the new id.
  bool Add(std::string token, int32_t id);
  void Replace(std::string token, int32_t id);  // the id's old string, if any, is no longer found

  std::optional<int32_t> Find(std::string_view token) const {
    const auto it = ids_.find(token);
    return it == ids_.end() ? std::nullopt : std::optional<int32_t>(it->second);
  }
  bool Has(int32_t id) const { return id >= 0 && id < size() && tokens_[id]; }
  // "" for an id without a string.
  std::string_view Get(int32_t id) const {
    return Has(id) ? std::string_view(*tokens_[id]) : std::string_view();
  }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // the largest id + 1

 private:
  std::vector<std::unique_ptr<std::string>> tokens_;   // by id; the strings do not move
  std::unordered_map<std::string_view, int32_t> ids_;  // views of tokens_
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of one piece, which is not empty.
  virtual void Tokenize(std::string_view piece, std::vector<int32_t>& out) const = 0;
};

// The tokens of the bytes "<0x00>" ... "<0xFF>"; -1 where there is none.
std::vector<int32_t> FindByteTokens(const Vocabulary& vocabulary);

// Does this token have a space (' ' or U+2581) after another character? If no token has, words can be handled
// one by one, which keeps the priority queues of the two BPEs short on texts that were not pre-tokenized.
bool JoinsWords(std::string_view token);

// ---- BPE by merges (GPT-2, Llama 3, Qwen; and Llama 2 as the Hugging Face package converts it).
struct BpeOptions {
  std::string unk_token = {};                  // "" for none: what is unknown vanishes
  std::string continuing_subword_prefix = {};  // of every symbol but the first of a piece
  std::string end_of_word_suffix = {};         // of the last symbol of a piece
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a piece that is a token is that token
};

// `never` says which ids text may not become (special tokens): no merge makes them. The vocabulary outlives
// the model.
Result<std::unique_ptr<TokenModel>> MakeBpe(const Vocabulary& vocabulary,
                                            const std::vector<std::pair<std::string, std::string>>& merges,
                                            const std::vector<bool>& never, const BpeOptions& options,
                                            const std::string& where);

// ---- BPE by scores (SentencePiece's BPE as GGUF and llama2.c hold it): of all neighbours whose join is a
// token, the best-scored joins first.
struct ScoredBpeOptions {
  int32_t unk_id = 0;
  bool join_unknown = true;  // may a character that is no token by itself become part of a longer token?
};
// `byte_ids` as FindByteTokens gives them.
std::unique_ptr<TokenModel> MakeScoredBpe(const Vocabulary& vocabulary, std::vector<float> scores,
                                          const std::vector<bool>& never, std::vector<int32_t> byte_ids,
                                          const ScoredBpeOptions& options);

// ---- Whole words. A word that is no token is the unknown one, or vanishes where there is none.
std::unique_ptr<TokenModel> MakeWordLevel(const Vocabulary& vocabulary, const std::vector<bool>& never,
                                          std::optional<int32_t> unk_id);

// ---- WordPiece (BERT): greedy longest match from the start of a word; if that fails, or the word is too
// long, all of it is unknown.
struct WordPieceOptions {
  std::optional<int32_t> unk_id;
  std::string continuing_subword_prefix = "##";  // of every token but the first of a word
  size_t max_characters = 100;
};
std::unique_ptr<TokenModel> MakeWordPiece(const Vocabulary& vocabulary, const std::vector<bool>& never,
                                          const WordPieceOptions& options);

// ---- Unigram: the most probable segmentation (Viterbi). Ties are broken by the rounding of the sums, so
// each kind of file is added up as its own library does.
struct UnigramOptions {
  std::optional<int32_t> unk_id;
  bool byte_fallback = false;
  // tokenizer.model: sums are rounded to float, and an unknown character is never part of a token. Else
  // (tokenizer.json): sums in double, and neighbouring unknown characters that spell a token become it.
  bool as_sentencepiece = false;
  std::optional<double> worst_score = {};  // unknown characters score below it; by default of all tokens
};
std::unique_ptr<TokenModel> MakeUnigram(const Vocabulary& vocabulary, std::vector<double> scores,
                                        const std::vector<bool>& never, const UnigramOptions& options);

}  // namespace celer
