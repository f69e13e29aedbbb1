// A trie over bytes: which of many strings are a prefix of a text.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>

#include "text/tokenizer/model/flat_map.h"

namespace celer {

class Trie {
 public:
  // A later value for the same key replaces the earlier one. The empty key is ignored.
  void Insert(std::string_view key, int32_t value) {
    if (key.empty()) return;
    uint32_t node = 0;
    for (const char c : key) {
      Node& edge = edges_[EdgeKey(node, c)];
      if (!edge.next) edge.next = ++nodes_;
      node = edge.next;
    }
    first_bytes_.set(static_cast<uint8_t>(key[0]));
    values_[node] = value;
  }

  // Calls f(length, value) for each key that `text` starts with, from short to long.
  template <class F>
  void ForEachPrefix(std::string_view text, F&& f) const {
    if (text.empty() || !first_bytes_.test(static_cast<uint8_t>(text[0]))) return;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const Node* edge = edges_.Find(EdgeKey(node, text[i]));
      if (!edge || !edge->next) return;
      node = edge->next;
      if (const int32_t* value = values_.Find(node)) f(i + 1, *value);
    }
  }

  bool StartsWith(char first_byte) const { return first_bytes_.test(static_cast<uint8_t>(first_byte)); }
  bool empty() const { return first_bytes_.none(); }

 private:
  struct Node {
    uint32_t next = 0;
  };
  static uint64_t EdgeKey(uint32_t node, char c) { return uint64_t{node} << 8 | static_cast<uint8_t>(c); }

  FlatMap<Node> edges_;
  FlatMap<int32_t> values_;
  std::bitset<256> first_bytes_;
  uint32_t nodes_ = 0;
};

}  // namespace celer
