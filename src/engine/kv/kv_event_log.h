// Changes of the prefix cache, for routers that send a request to the replica that has its prefix. An engine without a log
// spends a branch for each block that is cached or evicted.
//
//   engine's thread: PrefixCache -> KvEventLog, once a step -> reader's thread: Take() -> KvChains (kv_chains.h)
//
// The engine never waits for the reader. If the reader falls behind by more changes than the log keeps, it gets kCleared at
// once, and all that the cache then holds after a later step.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/kv/prefix_cache.h"

namespace celer {

struct KvChange {
  enum class Kind : uint8_t { kStored, kErased, kCleared } kind = Kind::kCleared;
  bool first = false;  // the first block of a chain
  PrefixCache::Content content = 0, before = 0;
  std::array<int32_t, kKvBlockTokens> tokens = {};
  std::shared_ptr<const KvScope> scope = {};  // of a first block; may be null
};

class KvEventLog {
 public:
  // --- the engine's thread ---
  // Begins with kCleared: an engine that was loaded again has nothing of the one before it.
  void Attach(int64_t blocks);
  void Stored(KvChange change) { pending_.push_back(std::move(change)); }
  void Erased(PrefixCache::Content content) { pending_.push_back({KvChange::Kind::kErased, false, content}); }
  void Cleared();
  // Hands the changes over.
  void EndStep(const PrefixCache& cache);
  // At the end of its scope, unless there is no log.
  class Step {
   public:
    Step(KvEventLog* log, const PrefixCache& cache) : log_(log), cache_(cache) {}
    ~Step() {
      if (log_) log_->EndStep(cache_);
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    KvEventLog* const log_;
    const PrefixCache& cache_;
  };

  // --- the reader's thread ---
  // All changes since the last call, in order; waits for one. None: nothing happened for so long, or Stop() was called.
  std::vector<KvChange> Take(std::chrono::milliseconds wait);

  // --- any thread ---
  void Stop();              // no Take() waits from now on
  int64_t dropped() const;  // changes that the reader was too slow for

 private:
  static constexpr int64_t kMostChanges = 1 << 16;  // beside as many as the cache has blocks

  std::vector<KvChange> pending_;  // of this step
  bool behind_ = false;            // changed by the engine's thread, under the mutex

  mutable std::mutex mutex_;  // of all below
  std::condition_variable arrived_;
  std::vector<KvChange> ready_;
  int64_t most_ = kMostChanges;
  int64_t dropped_ = 0;
  bool wants_all_ = false;  // the reader knows that it is behind
  bool stopped_ = false;
};

}  // namespace celer
