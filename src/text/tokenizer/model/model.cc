#include "text/tokenizer/model/model.h"

#include "base/check.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/metaspace.h"

namespace celer {

bool Vocabulary::Add(std::string token, int32_t id) {
  if (Has(id) && *tokens_[id] != token) return false;
  Replace(std::move(token), id);
  return true;
}

void Vocabulary::Replace(std::string token, int32_t id) {
  CELER_CHECK_GE(id, 0);
  if (id >= size()) tokens_.resize(static_cast<size_t>(id) + 1);
  if (tokens_[id]) {
    if (*tokens_[id] == token) return;
    const auto old = ids_.find(*tokens_[id]);
    if (old != ids_.end() && old->second == id) ids_.erase(old);
  }
  auto text = std::make_unique<std::string>(std::move(token));
  ids_.erase(*text);  // the key must view the string that stays
  ids_.emplace(*text, id);
  tokens_[id] = std::move(text);
}

bool JoinsWords(std::string_view token) {
  bool after_other = false;
  while (!token.empty()) {
    const bool meta = token.starts_with(kMetaspace);
    const bool space = meta || token[0] == ' ';
    if (space && after_other) return true;
    after_other = !space;
    token.remove_prefix(meta ? kMetaspace.size() : 1);
  }
  return false;
}

std::vector<int32_t> FindByteTokens(const Vocabulary& vocabulary) {
  std::vector<int32_t> ids(256);
  for (int byte = 0; byte < 256; ++byte)
    ids[byte] = vocabulary.Find(ByteTokenName(static_cast<unsigned char>(byte))).value_or(-1);
  return ids;
}

}  // namespace celer
