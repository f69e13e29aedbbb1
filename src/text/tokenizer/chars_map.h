// SentencePiece's normalization table ("precompiled_charsmap"): a double-array trie (Darts) over 32-bit
// units, then the replacement texts that it leads to, each ended by a zero byte. It comes from a file and is
// used only after validation.
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
  // The replacement of the shortest prefix of `text` that the table has.
  std::optional<std::string_view> Find(std::string_view text) const;
  std::string_view texts() const;  // all replacements

 private:
  uint32_t Unit(size_t i) const;
  std::string map_;
};

}  // namespace celer
