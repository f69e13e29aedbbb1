#include "engine/kv/kv_chains.h"

#include <utility>

#include "base/check.h"
#include "io/file/sha256.h"

namespace celer {
namespace {

// RFC 8949: the first byte has a type and a small number, or the width of the number behind it.
class CborWriter {
 public:
  enum Type : uint8_t { kNumber = 0, kNegative = 1, kBytes = 2, kText = 3, kArray = 4 };

  void Head(Type type, uint64_t number) {
    const auto first = static_cast<uint8_t>(type << 5);
    const int width = number < 24              ? 0
                      : number < 0x100         ? 1
                      : number < 0x10000       ? 2
                      : number < 0x1'0000'0000 ? 4
                                               : 8;
    Byte(width == 0 ? first | static_cast<uint8_t>(number)
                    : first | static_cast<uint8_t>(width == 1   ? 24
                                                   : width == 2 ? 25
                                                   : width == 4 ? 26
                                                                : 27));
    for (int shift = 8 * (width - 1); shift >= 0; shift -= 8) Byte(static_cast<int>(number >> shift & 0xff));
  }
  void Integer(int64_t value) {
    value < 0 ? Head(kNegative, static_cast<uint64_t>(-1 - value))
              : Head(kNumber, static_cast<uint64_t>(value));
  }
  void Text(std::string_view text) {
    Head(kText, text.size());
    for (const char c : text) Byte(static_cast<unsigned char>(c));
  }
  void Bytes(std::span<const std::byte> bytes) {
    Head(kBytes, bytes.size());
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void Null() { Byte(0xf6); }
  std::span<const std::byte> written() const { return out_; }

 private:
  void Byte(int value) { out_.push_back(static_cast<std::byte>(value)); }

  std::vector<std::byte> out_;
};

}  // namespace

KvKeys KvKeysOf(const KvScope* scope, bool first) {
  KvKeys keys;
  if (!scope) return keys;
  // An adapter may be replaced by another of the same name.
  if (!scope->lora_name.empty()) keys.insert(keys.end(), {scope->lora_name, scope->lora_content});
  if (scope->rope_length != 0) keys.emplace_back(scope->rope_length);
  if (first && !scope->cache_salt.empty()) keys.emplace_back(scope->cache_salt);
  return keys;
}

KvHash KvSeedHash(std::string_view seed) {
  CborWriter cbor;
  cbor.Text(seed);
  return Sha256Of(cbor.written());
}

KvHash KvBlockHash(const KvHash& before, std::span<const int32_t> tokens, const KvKeys& keys) {
  CborWriter cbor;
  cbor.Head(CborWriter::kArray, 3);
  cbor.Bytes(before);
  cbor.Head(CborWriter::kArray, tokens.size());
  for (const int32_t token : tokens) cbor.Integer(token);
  if (keys.empty()) {
    cbor.Null();
  } else {
    cbor.Head(CborWriter::kArray, keys.size());
    for (const auto& key : keys) {
      if (const auto* text = std::get_if<std::string>(&key))
        cbor.Text(*text);
      else
        cbor.Integer(std::get<int64_t>(key));
    }
  }
  return Sha256Of(cbor.written());
}

std::vector<KvEvent> KvChains::Read(std::span<const KvChange> changes) {
  std::vector<KvEvent> events;
  last_ = 0;
  for (const KvChange& change : changes) {
    switch (change.kind) {
      case KvChange::Kind::kStored:
        Store(change, &events);
        break;
      case KvChange::Kind::kErased:
        Remove(change.content, &events);
        break;
      case KvChange::Kind::kCleared:
        blocks_.clear();
        last_ = 0;
        events.emplace_back();
        break;
    }
  }
  return events;
}

void KvChains::Store(const KvChange& change, std::vector<KvEvent>* events) {
  Block block{.hash = {}, .scope = change.scope};
  std::optional<KvHash> hash_before;
  if (!change.first) {
    const auto before = blocks_.find(change.before);
    CELER_CHECK(before != blocks_.end());
    hash_before = before->second.hash;
    block.scope = before->second.scope;
  }
  block.hash =
      KvBlockHash(hash_before.value_or(seed_), change.tokens, KvKeysOf(block.scope.get(), change.first));
  if (change.first || last_ != change.before)
    events->push_back({.kind = KvEvent::Kind::kStored, .before = hash_before, .scope = block.scope});
  KvEvent& event = events->back();
  event.hashes.push_back(block.hash);
  event.tokens.insert(event.tokens.end(), change.tokens.begin(), change.tokens.end());
  last_ = change.content;
  blocks_[change.content] = std::move(block);
}

void KvChains::Remove(Content content, std::vector<KvEvent>* events) {
  const auto found = blocks_.find(content);
  CELER_CHECK(found != blocks_.end());
  if (events->empty() || events->back().kind != KvEvent::Kind::kRemoved)
    events->push_back({.kind = KvEvent::Kind::kRemoved});
  events->back().hashes.push_back(found->second.hash);
  blocks_.erase(found);
  last_ = 0;
}

}  // namespace celer
