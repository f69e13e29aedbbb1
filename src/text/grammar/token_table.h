// The bytes of every token of a vocabulary, as a trie that masks are computed on. Immutable, shared by
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace celer {

class Tokenizer;

class TokenTable {
 public:
  // One node per distinct prefix, in depth-first order: the nodes below node i are i+1 .. end-1.
  struct Node {
    uint32_t end;          // the first node that is not below this one
    uint32_t first_token;  // its tokens: tokens()[first_token .. next node's first_token)
    uint16_t depth;        // bytes from the root; the root is not stored, its children have depth 1
    uint8_t byte;
  };

  // `end_tokens` end an answer. Special tokens and tokens without bytes are never allowed, except those.
  // `as_text`: special tokens that count as the text they are named by, for syntax written with them.
  static std::shared_ptr<const TokenTable> FromTokenizer(const Tokenizer& tokenizer,
                                                         std::span<const int32_t> end_tokens,
                                                         std::span<const int32_t> as_text = {});
  // With the tokenizer's own end-of-turn tokens.
  static std::shared_ptr<const TokenTable> FromTokenizer(const Tokenizer& tokenizer);
  // bytes[id]; an empty string is a token that is never allowed.
  static std::shared_ptr<const TokenTable> FromBytes(std::vector<std::string> bytes,
                                                     std::vector<int32_t> end_tokens);

  int vocab_size() const { return static_cast<int>(bytes_.size()); }
  size_t mask_words() const { return (bytes_.size() + 31) / 32; }
  // "" for a token that is never text.
  std::string_view Bytes(int32_t id) const {
    return id >= 0 && id < vocab_size() ? std::string_view(bytes_[id]) : std::string_view();
  }
  bool IsEnd(int32_t id) const;
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  size_t longest() const { return longest_; }

  // nodes()[node_count()] is a sentinel.
  std::span<const Node> nodes() const { return nodes_; }
  uint32_t node_count() const { return static_cast<uint32_t>(nodes_.size() - 1); }
  std::span<const int32_t> tokens() const { return tokens_; }

 private:
  TokenTable(std::vector<std::string> bytes, std::vector<int32_t> end_tokens);

  std::vector<std::string> bytes_;
  std::vector<int32_t> end_tokens_;  // sorted
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  size_t longest_ = 0;
};

}  // namespace celer
