#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/model/model.h"
#include "text/tokenizer/model/trie.h"

namespace celer {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the worst score, as SentencePiece has it

class Unigram : public TokenModel {
 public:
  Unigram(const Vocabulary& vocabulary, std::vector<double> scores, const std::vector<bool>& never,
          const UnigramOptions& options)
      : vocabulary_(vocabulary), scores_(std::move(scores)), never_(never), options_(options) {
    scores_.resize(vocabulary.size());
    never_.resize(vocabulary.size());
    double worst = 0;
    bool first = true;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      if (!vocabulary.Has(id)) continue;
      worst = first ? scores_[id] : std::min(worst, scores_[id]);
      first = false;
      if (!never_[id]) trie_.Insert(vocabulary.Get(id), id);
    }
    worst = options.worst_score.value_or(worst);
    unknown_score_ = options.as_sentencepiece
                         ? static_cast<float>(worst) - static_cast<float>(kUnknownPenalty)
                         : worst - kUnknownPenalty;
    if (options.byte_fallback) byte_ids_ = FindByteTokens(vocabulary);
  }

  void Tokenize(std::string_view piece, std::vector<int32_t>& out) const override {
    if (options_.as_sentencepiece)
      Search<float>(piece, out);
    else
      Search<double>(piece, out);
  }

 private:
  template <class Score>
  void Search(std::string_view piece, std::vector<int32_t>& out) const {
    struct Best {  // of all segmentations that end here
      Score score = 0;
      size_t start = SIZE_MAX;
      int32_t id = -1;  // -1: unknown
    };
    std::vector<Best> best(piece.size() + 1);
    for (size_t at = 0; at < piece.size();) {
      const Score so_far = best[at].score;
      const size_t length = utf8::Decode(piece.substr(at)).length;
      bool single = false;
      const auto offer = [&](size_t end, double token_score, int32_t id) {
        Best& node = best[end];
        const Score score = static_cast<Score>(token_score) + so_far;
        if (node.start == SIZE_MAX || score > node.score) node = {score, at, id};
      };
      trie_.ForEachPrefix(piece.substr(at), [&](size_t size, int32_t id) {
        offer(at + size, scores_[id], id);
        single |= size == length;
      });
      if (!single) offer(at + length, unknown_score_, -1);
      at += length;
    }

    // Backtrace; neighbouring unknowns are fused.
    std::vector<std::pair<size_t, size_t>> spans;
    std::vector<int32_t> ids;
    for (size_t end = piece.size(); end > 0;) {
      const Best& node = best[end];
      const bool unknown = node.id < 0 || node.id == options_.unk_id;
      if (unknown && !ids.empty() && ids.back() < 0) {
        spans.back().first = node.start;
      } else {
        spans.emplace_back(node.start, end);
        ids.push_back(unknown ? -1 : node.id);
      }
      end = node.start;
    }
    for (size_t i = ids.size(); i-- > 0;)
      if (ids[i] >= 0)
        out.push_back(ids[i]);
      else
        Unknown(piece.substr(spans[i].first, spans[i].second - spans[i].first), out);
  }

  void Unknown(std::string_view text, std::vector<int32_t>& out) const {
    // Fused unknowns can spell a token, which then is what they become.
    if (const auto id = vocabulary_.Find(text); id && !never_[*id] && !options_.as_sentencepiece) {
      out.push_back(*id);
      return;
    }
    if (options_.byte_fallback && std::all_of(text.begin(), text.end(), [&](char b) {
          return byte_ids_[static_cast<uint8_t>(b)] >= 0;
        })) {
      for (const char byte : text) out.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    } else if (options_.unk_id) {
      out.push_back(*options_.unk_id);
    }
  }

  const Vocabulary& vocabulary_;
  std::vector<double> scores_;
  std::vector<bool> never_;
  UnigramOptions options_;
  Trie trie_;
  double unknown_score_ = 0;
  std::vector<int32_t> byte_ids_;
};

}  // namespace

std::unique_ptr<TokenModel> MakeUnigram(const Vocabulary& vocabulary, std::vector<double> scores,
                                        const std::vector<bool>& never, const UnigramOptions& options) {
  return std::make_unique<Unigram>(vocabulary, std::move(scores), never, options);
}

}  // namespace celer
