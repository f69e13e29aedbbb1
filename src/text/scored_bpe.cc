#include <algorithm>
#include <queue>

#include "text/model.h"
#include "text/utf8.h"

namespace celer {
namespace {

class ScoredBpe : public Model {
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
      if (!never_[id]) longest_ = std::max(longest_, vocabulary.Get(id).size());
  }

  void Tokenize(std::string_view piece, std::vector<int32_t>& out) const override {
    std::vector<Symbol> symbols;
    symbols.reserve(piece.size());
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
      if (!options_.join_unknown && (a.id < 0 || b.id < 0)) return std::nullopt;
      const std::string_view joined(a.text.data(), a.text.size() + b.text.size());
      const int32_t id = Lookup(joined);
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
  size_t longest_ = 0;  // bytes of the longest token that text can become
};

}  // namespace

std::unique_ptr<Model> MakeScoredBpe(const Vocabulary& vocabulary, std::vector<float> scores,
                                     const std::vector<bool>& never, std::vector<int32_t> byte_ids,
                                     const ScoredBpeOptions& options) {
  return std::make_unique<ScoredBpe>(vocabulary, std::move(scores), never, std::move(byte_ids), options);
}

}  // namespace celer
