// What two engines must have in common for the keys and values of one to be those of the other, to the bit: the model, how
// its weights and its KV are stored, and what computes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "celer/engine.h"
#include "engine/kv/kv_chains.h"

namespace celer {

struct KvIdentity {
  std::map<std::string, std::string> fields = {};
  int64_t block_bytes = 0;

  bool operator==(const KvIdentity&) const = default;
};

// Of an engine that was loaded with these options. Its model's files are read: of each the first 32 MiB, and a page of each
// MiB behind them. An error in one sentence if the engine's keys and values cannot be transferred.
Result<KvIdentity> IdentifyKv(const Engine& engine, const EngineOptions& options);

// The first difference: "its weights are q8_0, and here they are q4_0"; "": none.
std::string DifferenceOf(const KvIdentity& theirs, const KvIdentity& own);

// What the keys and values of a prompt depend on besides: the tokens, and its salt, adapters and rope angles.
struct KvPrefix {
  std::string salt = {};  // the same in every engine
  std::vector<int32_t> tokens = {};

  // Of the first so many blocks, which the tokens have.
  KvHash Hash(int64_t blocks) const;
};

}  // namespace celer
