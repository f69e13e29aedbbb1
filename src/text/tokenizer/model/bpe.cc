#include <algorithm>
#include <array>
#include <queue>

#include "base/log.h"
#include "base/utf8.h"
#include "io/file/printable.h"
#include "text/tokenizer/model/flat_map.h"
#include "text/tokenizer/model/model.h"

namespace celer {
namespace {

struct Rule {
  uint32_t rank = 0;
  int32_t id = -1;
};

uint64_t PairKey(int32_t a, int32_t b) {
  return uint64_t{static_cast<uint32_t>(a)} << 32 | static_cast<uint32_t>(b);
}

class Bpe : public TokenModel {
 public:
  Bpe(const Vocabulary& vocabulary, std::vector<bool> never, const BpeOptions& options)
      : vocabulary_(vocabulary), never_(std::move(never)), options_(options) {
    plain_ = options.continuing_subword_prefix.empty() && options.end_of_word_suffix.empty();
    low_.fill(-1);
    std::string text;
    for (char32_t c = 0; c < low_.size(); ++c) {
      text.clear();
      utf8::Append(c, text);
      low_[c] = Lookup(text);
    }
    space_id_ = plain_ ? Lookup("\u2581") : -1;
    if (options.byte_fallback) byte_ids_ = FindByteTokens(vocabulary);
    if (!options.unk_token.empty()) unk_id_ = vocabulary.Find(options.unk_token).value_or(-1);
  }

  Status AddMerges(const std::vector<std::pair<std::string, std::string>>& merges, const std::string& where) {
    merges_.Reserve(merges.size());
    const std::string& prefix = options_.continuing_subword_prefix;
    std::string joined;
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const auto& [left, right] = merges[rank];
      joined = left;
      joined += std::string_view(right).substr(std::min(prefix.size(), right.size()));
      const auto a = vocabulary_.Find(left), b = vocabulary_.Find(right), id = vocabulary_.Find(joined);
      if (!a || !b || !id)
        return Error::Corrupt(where, ": merge ", rank, " is '", Printable(left), "' with '", Printable(right),
                              "', but '",
                              Printable(!a   ? left
                                        : !b ? right
                                             : joined),
                              "' is not in the vocabulary");
      if (Never(*id)) continue;
      joins_words_ |= JoinsWords(joined);
      merges_[PairKey(*a, *b)] = {static_cast<uint32_t>(rank), *id};
    }
    return {};
  }

  void Tokenize(std::string_view piece, std::vector<int32_t>& out) const override {
    if (options_.ignore_merges)
      if (const auto id = vocabulary_.Find(piece); id && !Never(*id)) {
        out.push_back(*id);
        return;
      }
    const size_t begin = out.size();
    AppendSymbols(piece, out);
    int32_t* ids = out.data() + begin;
    const size_t count = out.size() - begin;
    if (count <= kSmall || joins_words_ || space_id_ < 0) {
      out.resize(begin + Merge(ids, count));
      return;
    }
    size_t written = 0;
    for (size_t start = 0; start < count;) {
      size_t end = start + 1;
      while (end < count && !(ids[end] == space_id_ && ids[end - 1] != space_id_)) ++end;
      const size_t left = Merge(ids + start, end - start);
      std::copy(ids + start, ids + start + left, ids + written);
      written += left;
      start = end;
    }
    out.resize(begin + written);
  }

 private:
  static constexpr size_t kSmall = 24;  // up to here, scanning beats a queue

  bool Never(int32_t id) const { return static_cast<size_t>(id) < never_.size() && never_[id]; }

  int32_t Lookup(std::string_view symbol) const {
    const auto id = vocabulary_.Find(symbol);
    return id && !Never(*id) ? *id : -1;
  }

  // One id for each character, or for its bytes, or the unknown token.
  void AppendSymbols(std::string_view piece, std::vector<int32_t>& out) const {
    bool unknown = false;  // an unknown token waits to be written: more unknowns may fuse with it
    for (size_t i = 0; i < piece.size();) {
      const utf8::CodePoint c = utf8::Decode(piece.substr(i));
      const std::string_view text = piece.substr(i, c.length);
      int32_t id;
      std::string decorated;
      if (plain_) {
        id = c.valid && c.value < low_.size() ? low_[c.value] : Lookup(text);
      } else {
        if (i > 0) decorated = options_.continuing_subword_prefix;
        decorated += text;
        if (i + c.length >= piece.size()) decorated += options_.end_of_word_suffix;
        id = Lookup(decorated);
      }
      i += c.length;
      if (id >= 0) {
        if (unknown) out.push_back(unk_id_);
        unknown = false;
        out.push_back(id);
        continue;
      }
      const std::string_view bytes = plain_ ? text : decorated;
      if (options_.byte_fallback && std::all_of(bytes.begin(), bytes.end(), [&](char b) {
            return byte_ids_[static_cast<uint8_t>(b)] >= 0;
          })) {
        for (const char byte : bytes) out.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
        continue;
      }
      if (unk_id_ < 0) continue;
      if (unknown && !options_.fuse_unk) out.push_back(unk_id_);
      unknown = true;
    }
    if (unknown) out.push_back(unk_id_);
  }

  // The pair of the lowest rank first, ties to the leftmost; ids are merged in place, the new count is
  // returned.
  size_t Merge(int32_t* ids, size_t count) const {
    return count < 2 ? count : count <= kSmall ? MergeSmall(ids, count) : MergeLarge(ids, count);
  }

  size_t MergeSmall(int32_t* ids, size_t count) const {
    constexpr uint32_t kNoMerge = UINT32_MAX;
    Rule next[kSmall];  // of the pair that starts at each place
    const auto find = [&](size_t i) {
      const Rule* merge = merges_.Find(PairKey(ids[i], ids[i + 1]));
      return merge ? *merge : Rule{kNoMerge, -1};
    };
    for (size_t i = 0; i + 1 < count; ++i) next[i] = find(i);
    while (count > 1) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < count; ++i)
        if (next[i].rank < next[best].rank) best = i;
      if (next[best].rank == kNoMerge) break;
      ids[best] = next[best].id;
      std::copy(ids + best + 2, ids + count, ids + best + 1);
      if (best + 2 < count) std::copy(next + best + 2, next + count - 1, next + best + 1);
      --count;
      if (best > 0) next[best - 1] = find(best - 1);
      if (best + 1 < count) next[best] = find(best);
    }
    return count;
  }

  size_t MergeLarge(int32_t* ids, size_t count) const {
    struct Link {
      int64_t previous, next;
    };
    struct Candidate {
      uint32_t rank;
      size_t at;
      int32_t id;
      bool operator>(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : at > other.at;
      }
    };
    constexpr int32_t kGone = -1;
    std::vector<Link> links(count);
    std::vector<Candidate> heap;
    const auto candidate = [&](size_t at) -> std::optional<Candidate> {
      const int64_t right = links[at].next;
      if (right < 0) return std::nullopt;
      const Rule* merge = merges_.Find(PairKey(ids[at], ids[right]));
      if (!merge) return std::nullopt;
      return Candidate{merge->rank, at, merge->id};
    };
    for (size_t i = 0; i < count; ++i)
      links[i] = {static_cast<int64_t>(i) - 1, i + 1 < count ? static_cast<int64_t>(i) + 1 : -1};
    for (size_t i = 0; i < count; ++i)
      if (const auto c = candidate(i)) heap.push_back(*c);
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                                 std::move(heap));
    while (!queue.empty()) {
      const Candidate top = queue.top();
      queue.pop();
      if (ids[top.at] == kGone) continue;
      const auto now = candidate(top.at);  // the pair may have changed since it was queued
      if (!now || now->id != top.id) continue;
      const int64_t right = links[top.at].next;
      ids[top.at] = top.id;
      ids[right] = kGone;
      links[top.at].next = links[right].next;
      if (links[right].next >= 0) links[links[right].next].previous = static_cast<int64_t>(top.at);
      if (links[top.at].previous >= 0)
        if (const auto c = candidate(static_cast<size_t>(links[top.at].previous))) queue.push(*c);
      if (const auto c = candidate(top.at)) queue.push(*c);
    }
    return static_cast<size_t>(std::remove(ids, ids + count, kGone) - ids);
  }

  const Vocabulary& vocabulary_;
  std::vector<bool> never_;
  BpeOptions options_;
  bool plain_;
  std::array<int32_t, 0x180> low_;  // ids of single characters: ASCII, Latin-1 and GPT-2's byte alphabet
  std::vector<int32_t> byte_ids_;
  int32_t unk_id_ = -1;
  int32_t space_id_ = -1;     // of U+2581 alone
  bool joins_words_ = false;  // some merge has a U+2581 after another character
  FlatMap<Rule> merges_;
};

}  // namespace

Result<std::unique_ptr<TokenModel>> MakeBpe(const Vocabulary& vocabulary,
                                            const std::vector<std::pair<std::string, std::string>>& merges,
                                            const std::vector<bool>& never, const BpeOptions& options,
                                            const std::string& where) {
  if (!options.unk_token.empty() && !vocabulary.Find(options.unk_token))
    log::Debug("{}: the unknown token '{}' is not in the vocabulary; unknown characters vanish", where,
               options.unk_token);
  auto bpe = std::make_unique<Bpe>(vocabulary, never, options);
  CELER_RETURN_IF_ERROR(bpe->AddMerges(merges, where));
  return std::unique_ptr<TokenModel>(std::move(bpe));
}

}  // namespace celer
