// Access to the inside of an Engine: to make one on a given runner, for tests and simulated devices, and to trace it.
#pragma once

#include <chrono>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "engine/kv/kv_identity.h"
#include "engine/runners/runner.h"
#include "engine/speculate/speculation.h"

namespace celer {

class Adapters;
struct EngineShare;
class KvEventLog;
class StepTrace;

struct EngineInternals {
  // Uses only the engine's own options: `model` as a name, the chunks, the prefix cache, preemption and
  // speculation. Without `adapters` it begins with none.
  static std::unique_ptr<Engine> Make(std::unique_ptr<Runner> runner, const EngineOptions& options,
                                      std::unique_ptr<Speculator> speculator = nullptr,
                                      std::shared_ptr<Adapters> adapters = nullptr);

  // As Engine::Load(), with what engines of one model have in common (engine/loop/replicas.h).
  static Result<std::unique_ptr<Engine>> Load(const EngineOptions& options, EngineShare* share);

  // What the engine does from now on goes into the trace, which outlives it.
  static void Trace(Engine& engine, StepTrace& to);

  // Changes of the prefix cache from now on go into the log. Before the first request.
  static void LogKv(Engine& engine, std::shared_ptr<KvEventLog> log);
  // On any thread: how many of the prompt's leading tokens the request would find in the prefix cache now.
  static int64_t CachedTokens(const Engine& engine, const Request& request);
  // Empties the prefix cache, and gives the memory of the KV back until it is used again, as far as the device can. No
  // request may be in flight.
  static Status DiscardKv(Engine& engine);

  // --- KV transfer: between two steps, of requests whose `lora` is set ---
  // What a block takes as bytes, or in a sentence why the engine's blocks cannot be read and written.
  static Result<int64_t> TransferBlockBytes(const Engine& engine);
  // On any thread: what the keys and values of a prompt depend on.
  static KvPrefix PrefixOf(const Engine& engine, const Request& request);
  struct HeldPrefix {
    int64_t hold = 0;  // of the blocks; 0: none
    std::vector<int32_t> blocks = {};
    int64_t tokens() const { return std::ssize(blocks) * kKvBlockTokens; }
  };
  // Keeps the prompt's leading blocks that are cached, but that of its last token, which runs anyway, until they are
  // released or a sequence needs the room. All that is kept is at most half of the pool: the oldest goes first.
  static HeldPrefix HoldPrefix(Engine& engine, const Request& request);
  static void ReleaseHold(Engine& engine, int64_t hold);
  // Blocks [first, first + count) of what is held. An error: it was given up.
  static Status ReadHeld(Engine& engine, int64_t hold, int64_t first, int64_t count,
                         std::span<std::byte> out);
  // Puts the prompt's blocks from `first` on, as another engine read them, into the prefix cache behind those that `hold`
  // has, which is 0 for a `first` of 0, and holds them as well. Returns how many there was room for.
  static Result<int64_t> StoreBlocks(Engine& engine, const Request& request, int64_t first,
                                     std::span<const std::byte> bytes, int64_t* hold);

  // For tests: the first invariant of blocks and sequences that does not hold between two steps; "": all
  // hold.
  static std::string CheckInvariants(const Engine& engine);
  // For tests: the steps without progress after which a request is starved; and expires deadlines as of
  // `now`.
  static void SetStarvationSteps(Engine& engine, int64_t steps);
  static void ExpireDeadlines(Engine& engine, std::chrono::steady_clock::time_point now);
};

}  // namespace celer
