#include "text/tokenizer/chars_map.h"

#include <cstring>

#include "base/utf8.h"

namespace celer {
namespace {

constexpr uint32_t kLabelMask = 0x800000FFu;  // a leaf has the upper bit, so no byte is its label
size_t UnitOffset(uint32_t unit) {
  return size_t{unit >> 10} << ((unit & 0x200u) >> 6);
}

}  // namespace

bool CharsMapIsSound(std::string_view map) {
  if (map.empty()) return true;
  uint32_t trie_bytes;
  if (map.size() < sizeof trie_bytes) return false;
  std::memcpy(&trie_bytes, map.data(), sizeof trie_bytes);
  map.remove_prefix(sizeof trie_bytes);
  if (trie_bytes % 4 != 0 || trie_bytes < 1024 || trie_bytes >= map.size() || map.back() != '\0')
    return false;
  const size_t units = trie_bytes / 4, texts = map.size() - trie_bytes;
  for (size_t i = 0; i < units; ++i) {
    uint32_t unit;
    std::memcpy(&unit, map.data() + i * 4, 4);
    if (unit >> 31) {  // a leaf: where its text starts
      if ((unit & 0x7FFFFFFFu) >= texts) return false;
      continue;
    }
    if (((i ^ UnitOffset(unit)) | 0xFF) >= units) return false;
  }
  return true;
}

uint32_t CharsMap::Unit(size_t i) const {
  uint32_t unit;
  std::memcpy(&unit, map_.data() + 4 + i * 4, 4);
  return unit;
}

std::string_view CharsMap::texts() const {
  if (map_.empty()) return {};
  uint32_t trie_bytes;
  std::memcpy(&trie_bytes, map_.data(), 4);
  return std::string_view(map_).substr(4 + trie_bytes);
}

std::optional<std::string_view> CharsMap::Find(std::string_view text) const {
  if (map_.empty() || Unit(0) >> 31) return std::nullopt;
  size_t node = UnitOffset(Unit(0));
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) break;
    node ^= byte;
    const uint32_t unit = Unit(node);
    if ((unit & kLabelMask) != byte) break;
    node ^= UnitOffset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    const size_t at =
        Unit(node) & 0x7FFFFFFFu;  // only a hostile table leads past the end or into a character
    if (at >= texts().size() || utf8::IsContinuation(texts()[at])) return std::nullopt;
    const std::string_view found = texts().substr(at);
    return found.substr(0, found.find('\0'));
  }
  return std::nullopt;
}

}  // namespace celer
