#include <algorithm>
#include <queue>

#include "base/utf8.h"
#include "text/tokenizer/metaspace.h"
#include "text/tokenizer/model/flat_map.h"
#include "text/tokenizer/model/model.h"

namespace celer {
namespace {

class ScoredBpe : public TokenModel {
 public:
  ScoredBpe(const Vocabulary& vocabulary, std::vector<float> scores, const std::vector<bool>& never,
            std::vector<int32_t> byte_ids, const ScoredBpeOptions& options)
      : vocabulary_(vocabulary),
        scores_(std::move(scores)),
        never_(never),
        byte_ids_(std::move(byte_ids)),
        options_(options) {
    scores_.resize(vocabulary.size());
    never_.resize(vocabulary.size());
    for (int32_t id = 0; id < vocabulary.size(); ++id)
      if (!never_[id]) {
        longest_ = std::max(longest_, vocabulary.Get(id).size());
        joins_words_ |= JoinsWords(vocabulary.Get(id));
      }
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      const std::string_view token = vocabulary.Get(id);
      if (token.size() > kMaxPaired || Lookup(token) != id) continue;
      for (size_t cut = 1; cut < token.size(); ++cut) {
        const int32_t left = Lookup(token.substr(0, cut)), right = Lookup(token.substr(cut));
        if (left >= 0 && right >= 0) joins_[PairKey(left, right)] = id;
      }
    }
  }

  void Tokenize(std::string_view piece, std::vector<int32_t>& out) const override {
    std::vector<Symbol> symbols;
    for (size_t start = 0; start < piece.size();) {
      size_t end = start + 1;
      while (end < piece.size() && (joins_words_ || !(SpaceAt(piece, end) && !SpaceBefore(piece, end))))
        ++end;
      TokenizeWord(piece.substr(start, end - start), symbols, out);
      start = end;
    }
  }

 private:
  struct Symbol {
    std::string_view text;  // empty once it has joined its left neighbour
    int32_t id;             // -1: no token
    int32_t previous, next;
  };
  struct Candidate {
    float score;
    int32_t left;
    uint32_t size;  // bytes of both
    int32_t id;
    bool operator<(const Candidate& other) const {  // the queue gives the largest first
      return score != other.score ? score < other.score : left > other.left;
    }
  };

  static bool SpaceAt(std::string_view text, size_t at) {
    return text[at] == ' ' || text.substr(at).starts_with(kMetaspace);
  }
  static bool SpaceBefore(std::string_view text, size_t at) {
    return text[at - 1] == ' ' || text.substr(0, at).ends_with(kMetaspace);
  }

  void TokenizeWord(std::string_view piece, std::vector<Symbol>& symbols, std::vector<int32_t>& out) const {
    symbols.clear();
    for (size_t i = 0; i < piece.size();) {
      const size_t length = utf8::Decode(piece.substr(i)).length;
      const std::string_view text = piece.substr(i, length);
      i += length;
      const auto index = static_cast<int32_t>(symbols.size());
      symbols.push_back({text, Lookup(text), index - 1, index + 1});
    }
    if (symbols.empty()) return;
    symbols.back().next = -1;
    Join(symbols);
    for (int32_t i = 0; i >= 0; i = symbols[i].next) Emit(symbols[i], out);
  }

  static constexpr size_t kMaxPaired = 256;  // bytes; longer tokens are found by their text

  static uint64_t PairKey(int32_t a, int32_t b) {
    return uint64_t{static_cast<uint32_t>(a)} << 32 | static_cast<uint32_t>(b);
  }

  int32_t Lookup(std::string_view text) const {
    if (text.size() > longest_) return -1;
    const auto id = vocabulary_.Find(text);
    return id && !never_[*id] ? *id : -1;
  }

  void Join(std::vector<Symbol>& symbols) const {
    std::vector<Candidate> start;
    const auto candidate = [&](int32_t left) -> std::optional<Candidate> {
      if (left < 0 || symbols[left].next < 0) return std::nullopt;
      const Symbol &a = symbols[left], &b = symbols[symbols[left].next];
      const bool tokens = a.id >= 0 && b.id >= 0;
      if (!tokens && !options_.join_unknown) return std::nullopt;
      const std::string_view joined(a.text.data(), a.text.size() + b.text.size());
      int32_t id = -1;
      if (tokens && joined.size() <= kMaxPaired) {
        if (const int32_t* found = joins_.Find(PairKey(a.id, b.id))) id = *found;
      } else {
        id = Lookup(joined);
      }
      if (id < 0) return std::nullopt;
      return Candidate{scores_[id], left, static_cast<uint32_t>(joined.size()), id};
    };
    for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i)
      if (const auto c = candidate(i)) start.push_back(*c);
    std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(start));
    while (!queue.empty()) {
      const Candidate top = queue.top();
      queue.pop();
      Symbol& left = symbols[top.left];
      if (left.text.empty() || left.next < 0) continue;
      Symbol& right = symbols[left.next];
      if (left.text.size() + right.text.size() != top.size) continue;  // one of them has grown since
      left.text = {left.text.data(), top.size};
      left.id = top.id;
      right.text = {};
      left.next = right.next;
      if (left.next >= 0) symbols[left.next].previous = top.left;
      if (const auto c = candidate(left.previous)) queue.push(*c);
      if (const auto c = candidate(top.left)) queue.push(*c);
    }
  }

  void Emit(const Symbol& symbol, std::vector<int32_t>& out) const {
    if (symbol.id >= 0) {
      out.push_back(symbol.id);
      return;
    }
    const auto byte_id = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
    if (std::all_of(symbol.text.begin(), symbol.text.end(), [&](char b) { return byte_id(b) >= 0; }))
      for (const char byte : symbol.text) out.push_back(byte_id(byte));
    else
      out.push_back(options_.unk_id);
  }

  const Vocabulary& vocabulary_;
  std::vector<float> scores_;
  std::vector<bool> never_;
  std::vector<int32_t> byte_ids_;
  ScoredBpeOptions options_;
  FlatMap<int32_t> joins_;  // two tokens -> the token that both spell together
  bool joins_words_ = false;
  size_t longest_ = 0;  // bytes of the longest token that text can become
};

}  // namespace

std::unique_ptr<TokenModel> MakeScoredBpe(const Vocabulary& vocabulary, std::vector<float> scores,
                                          const std::vector<bool>& never, std::vector<int32_t> byte_ids,
                                          const ScoredBpeOptions& options) {
  return std::make_unique<ScoredBpe>(vocabulary, std::move(scores), never, std::move(byte_ids), options);
}

}  // namespace celer
