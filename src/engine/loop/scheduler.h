// Decides what the next step computes. Every running sequence's next token comes first, then as much of the
// prompts as the budget leaves: lower priority numbers first, then who came first.
//
// Requests (groups) are what is ordered: the sequences of one stand side by side, whatever becomes of the
// others. The beams of a request are one unit: they enter the pool, run and are preempted together. Its
// answers (n, best_of) do not depend on each other, so each of them is a unit, and n may be more than fit.
//
// When the KV is full, the last unit in that order gives its blocks back. It is swapped out to host memory,
// or computed again later. So the first in the order always goes on, and everyone becomes the first by
// ageing: a group that computed nothing new for `patience` steps is starved, and goes before all priorities.
// What is computed again is nothing new, so a group that is preempted over and over ages as well.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "celer/options.h"
#include "engine/kv/block_manager.h"
#include "engine/loop/sequence.h"

namespace celer {

// How much of a sequence runs in a step.
struct Scheduled {
  Sequence* sequence;
  int64_t tokens;  // how many of its pending tokens and guesses run now
};

struct Plan {
  std::vector<BlockMove> moves;  // before the step
  std::vector<Scheduled> now;
  // It needs more blocks than there are, and nobody else has any. It waits; the engine is to end it. Never
  // set if the engine refuses what cannot fit at all (check_request.h).
  Group* never_fits = nullptr;
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
  void set_patience(int64_t steps) { patience_ = steps; }

  void Add(Sequence* sequence);         // of a new group: it waits
  void AddRunning(Sequence* sequence);  // it has its blocks, and goes on in the next step
  // Takes a sequence out, wherever it is. Its blocks are still its own.
  void Remove(Sequence* sequence);
  bool HasWork() const { return !waiting_.empty() || !running_.empty(); }

  // Without slices while all that could run waits for token masks. Else never twice in turn without slices
  // while there is work: beams that were swapped out come back in a step of their own.
  Plan Schedule();

  std::span<Sequence* const> running_sequences() const { return running_; }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t swapped() const;
  int64_t swaps() const { return swaps_; }
  int64_t recomputations() const { return recomputations_; }

 private:
  struct Before {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return std::tie(a->group->order, a->answer) < std::tie(b->group->order, b->answer);
    }
  };

  // How many sequences the unit has that begins at running_[i], and where the last one begins.
  size_t UnitSize(size_t i) const;
  size_t LastUnit() const;
  int64_t CountDecoding() const;  // tokens
  int64_t StepBudget(int64_t decoding) const;
  // What the unit at running_[i] may compute now, if `budget` tokens are left of which others need
  // `reserved`. `alone`: nobody is in the step yet.
  std::vector<Scheduled> PartsOf(size_t i, int64_t budget, int64_t reserved, bool alone);
  void ShareCommon(Group& group);
  std::vector<Scheduled> PartsOfBehind(Group& group, int64_t left);
  bool Prepare(std::span<const Scheduled> parts, Plan* plan);
  void Preempt(size_t begin, Plan* plan);  // the unit at running_[begin]
  void RunUnits(int64_t* budget, int64_t decoding, Plan* plan);
  void EnterWaiting(int64_t budget, Plan* plan);
  // Bring waiting sequences into the pool with what is known of them. False: there is no room.
  bool Enter(Sequence* sequence, int64_t budget, Plan* plan, int64_t* tokens);
  bool EnterTogether(Group& group, int64_t budget, Plan* plan, int64_t* tokens);
  bool HasRoom(int64_t missing, const Plan& plan) const;
  void SwapIn(Sequence& sequence, int64_t first_block, int64_t first_host_block, Plan* plan);
  void AgeWaiting();
  void NoteProgress(const Plan& plan);

  BlockManager& blocks_;
  Budget budget_;
  Preemption preemption_;
  SwapPays swap_pays_;
  int64_t watermark_;  // blocks that stay free when a sequence enters
  int64_t patience_ = kPatience;
  std::set<Sequence*, Before> waiting_;
  std::vector<Sequence*> running_;  // in order
  int64_t step_ = 0;
  int64_t swaps_ = 0, recomputations_ = 0;
};

}  // namespace celer
