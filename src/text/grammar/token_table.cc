#include "text/grammar/token_table.h"

#include <algorithm>
#include <numeric>

#include "text/tokenizer/tokenizer.h"

namespace celer {
namespace {

// No real token is longer; a hostile vocabulary must not make the trie deep.
constexpr size_t kMaxTokenBytes = 1024;

}  // namespace

TokenTable::TokenTable(std::vector<std::string> bytes, std::vector<int32_t> end_tokens)
    : bytes_(std::move(bytes)), end_tokens_(std::move(end_tokens)) {
  std::erase_if(end_tokens_, [&](int32_t id) { return id < 0 || id >= vocab_size(); });
  std::sort(end_tokens_.begin(), end_tokens_.end());
  end_tokens_.erase(std::unique(end_tokens_.begin(), end_tokens_.end()), end_tokens_.end());
  for (const int32_t id : end_tokens_) bytes_[id].clear();
  for (std::string& token : bytes_)
    if (token.size() > kMaxTokenBytes) token.clear();

  std::vector<int32_t> order;
  for (int32_t id = 0; id < vocab_size(); ++id)
    if (!bytes_[id].empty()) order.push_back(id);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return bytes_[a] < bytes_[b]; });
  std::vector<uint32_t> path;  // the nodes of the last token, by depth
  std::string_view last;
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  for (const int32_t id : order) {
    const std::string_view token = bytes_[id];
    longest_ = std::max(longest_, token.size());
    const size_t shared = static_cast<size_t>(
        std::mismatch(token.begin(), token.end(), last.begin(), last.end()).first - token.begin());
    close(shared);
    for (size_t depth = shared; depth < token.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(tokens_.size()), static_cast<uint16_t>(depth + 1),
                        static_cast<uint8_t>(token[depth])});
    }
    tokens_.push_back(id);
    last = token;
  }
  close(0);
  nodes_.push_back({0, static_cast<uint32_t>(tokens_.size()), 0, 0});
}

std::shared_ptr<const TokenTable> TokenTable::FromTokenizer(const Tokenizer& tokenizer,
                                                            std::span<const int32_t> end_tokens,
                                                            std::span<const int32_t> as_text) {
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const bool named = std::find(as_text.begin(), as_text.end(), id) != as_text.end();
    const bool special = tokenizer.IsSpecial(id) || id == tokenizer.unk_id() || id == tokenizer.bos_id() ||
                         id == tokenizer.pad_id();
    if (named || !special) bytes[id] = tokenizer.Piece(id);
  }
  return FromBytes(std::move(bytes), {end_tokens.begin(), end_tokens.end()});
}

std::shared_ptr<const TokenTable> TokenTable::FromTokenizer(const Tokenizer& tokenizer) {
  return FromTokenizer(tokenizer, tokenizer.end_of_turn_ids());
}

std::shared_ptr<const TokenTable> TokenTable::FromBytes(std::vector<std::string> bytes,
                                                        std::vector<int32_t> end_tokens) {
  return std::shared_ptr<const TokenTable>(new TokenTable(std::move(bytes), std::move(end_tokens)));
}

bool TokenTable::IsEnd(int32_t id) const {
  return std::binary_search(end_tokens_.begin(), end_tokens_.end(), id);
}

}  // namespace celer
