// Decides what the next step computes. Every running sequence's next token comes first, then as much of the
// prompts as the budget leaves: lower priority numbers first, then who came first.
//
// When the KV is full, the last in that order gives its blocks back. It is swapped out to host memory, or
// computed again later. So the first in the order always goes on, and everyone becomes the first: a sequence
// that has waited for kPatience steps goes before all priorities.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "celer/options.h"
#include "engine/block_manager.h"
#include "engine/sequence.h"

namespace celer {

// How much of a sequence runs in a step.
struct Scheduled {
  Sequence* sequence;
  int64_t tokens;  // how many of its pending tokens and guesses run now
};

struct Plan {
  std::vector<BlockMove> moves;  // before the step
  std::vector<Scheduled> now;
};

class Scheduler {
 public:
  static constexpr int64_t kPatience = 5000;

  // Whether swapping so many tokens out and in again is cheaper than computing them again.
  using SwapPays = std::function<bool(int64_t tokens)>;
  struct Budget {
    int64_t step = 512;  // tokens of a step at most
    int64_t mixed =
        0;  // likewise, if some sequences decode: the longer the step, the longer they wait. 0: the same
  };
  Scheduler(BlockManager& blocks, Budget budget, Preemption preemption = Preemption::kRecompute,
            SwapPays swap_pays = {});

  void Add(Sequence* sequence);         // it waits
  void AddRunning(Sequence* sequence);  // it has its blocks, and goes on in the next step
  // Takes a sequence out, wherever it is. Its blocks are still its own.
  void Remove(Sequence* sequence);
  bool HasWork() const { return !waiting_.empty() || !running_.empty(); }

  // Without slices only while all that could run waits for token masks: the engine refuses what cannot fit at
  // all.
  Plan Schedule();

  std::span<Sequence* const> running_sequences() const { return running_; }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t swapped() const;
  int64_t swaps() const { return swaps_; }
  int64_t recomputations() const { return recomputations_; }

 private:
  struct Before {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->order.Key() < b->order.Key(); }
  };

  // The sequences that run together or not at all, from running_[i] on: the beams of a request, or one.
  size_t Together(size_t i) const;
  bool Prepare(std::span<Sequence* const> sequences, int64_t tokens, Plan* plan);
  void Preempt(Sequence* victim, Plan* plan);
  // Brings a waiting sequence into the pool with what is known of it. False: there is no room.
  bool Enter(Sequence* sequence, int64_t budget, Plan* plan, int64_t* tokens);
  void BePatient();

  BlockManager& blocks_;
  Budget budget_;
  Preemption preemption_;
  SwapPays swap_pays_;
  int64_t watermark_;  // blocks that stay free when a sequence enters
  std::set<Sequence*, Before> waiting_;
  std::vector<Sequence*> running_;  // in order
  int64_t step_ = 0;
  int64_t swaps_ = 0, recomputations_ = 0;
};

}  // namespace celer
