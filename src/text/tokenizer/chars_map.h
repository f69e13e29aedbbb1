// SentencePiece's table of replacements ("precompiled_charsmap"): a double-array trie over units of 32 bits,
// then the texts that it leads to, each ended by a zero byte. It comes from a file and is followed only once
// it is known to be sound.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace celer {

// Whether every place that can be reached from the trie lies inside the table. An empty table is sound.
bool CharsMapIsSound(std::string_view map);

class CharsMap {
 public:
  explicit CharsMap(std::string sound) : map_(std::move(sound)) {}
  // What replaces the shortest beginning of `text` that the table has.
  std::optional<std::string_view> Find(std::string_view text) const;
  std::string_view texts() const;  // all replacements

 private:
  uint32_t Unit(size_t i) const;
  std::string map_;
};

}  // namespace celer
