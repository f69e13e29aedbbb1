// From changes of a prefix cache to events about hashes, which are equal wherever the tokens are: on every replica, and in
// vLLM with --prefix-caching-hash-algo sha256_cbor.
//
// A block's hash is the SHA-256 of CBOR's canonical form of [hash of the block before it, [token, ...], keys]. The first
// block follows the hash of the seed. The keys are null, or what two prompts must have in common besides their tokens: an
// adapter's name and content, a length that rope angles depend on, and with the first block the cache salt.
//
// The cache has each block with all those before it (prefix_cache.h), so what the events say is what a prompt would find.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/kv/kv_event_log.h"

namespace celer {

using KvHash = std::array<std::byte, 32>;
// The keys of a block's hash: texts and numbers; empty stands for null.
using KvKeys = std::vector<std::variant<std::string, int64_t>>;

KvKeys KvKeysOf(const KvScope* scope, bool first);
KvHash KvSeedHash(std::string_view seed);
KvHash KvBlockHash(const KvHash& before, std::span<const int32_t> tokens, const KvKeys& keys);

struct KvEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared } kind = Kind::kCleared;
  std::vector<KvHash> hashes = {};  // of a stored event: a chain
  // Of a stored event.
  std::optional<KvHash> before = {};          // none: its first block begins a text
  std::vector<int32_t> tokens = {};           // of all its blocks
  std::shared_ptr<const KvScope> scope = {};  // may be null
};

class KvChains {
 public:
  explicit KvChains(std::string_view seed) : seed_(KvSeedHash(seed)) {}

  std::vector<KvEvent> Read(std::span<const KvChange> changes);
  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }

 private:
  using Content = PrefixCache::Content;
  struct Block {
    KvHash hash;
    std::shared_ptr<const KvScope> scope = {};
  };

  void Store(const KvChange& change, std::vector<KvEvent>* events);
  void Remove(Content content, std::vector<KvEvent>* events);

  const KvHash seed_;
  std::unordered_map<Content, Block> blocks_;
  Content last_ = 0;  // stored by the last event, so that the next block of its chain may join that
};

}  // namespace celer
