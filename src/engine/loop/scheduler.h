// Continuous batching: decides what the next step computes. Every running sequence's next token comes first,
// then as much of the prompts as the token budget leaves (chunked prefill): lower priority numbers first,
// then first come, first served.
//
// The order is over requests (groups); the sequences of one are adjacent in it. The beams of a request are
// one unit: they are admitted, run and preempted together. Its answers (n, best_of) are independent, so each
// is a unit, and n may be more than fit.
//
// When the KV is full, the last unit in that order is preempted: swapped out to host memory, or recomputed
// later. So the first in the order always makes progress, and every group becomes the first by ageing: one
// that made no progress for `starvation_steps` steps is starved, and goes before all priorities.
// Recomputation is no progress, so a group that is preempted over and over ages as well.
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
  int64_t tokens;  // how many of its pending and drafted tokens run now
};

struct StepPlan {
  std::vector<BlockMove> moves;  // before the step
  std::vector<Scheduled> now;
  // A group that needs more blocks than the pool has. The engine ends it. Never set if requests that cannot
  // fit are rejected at submission (check_request.h).
  Group* never_fits = nullptr;
};

class Scheduler {
 public:
  static constexpr int64_t kStarvationSteps = 5000;

  // Whether swapping so many tokens out and in again is cheaper than recomputing them.
  using SwapPays = std::function<bool(int64_t tokens)>;
  struct Budget {
    int64_t step = 512;  // tokens of a step at most
    int64_t mixed =
        0;  // likewise, if some sequences decode: the longer the step, the longer they wait. 0: the same
  };
  Scheduler(BlockManager& blocks, Budget budget, Preemption preemption = Preemption::kRecompute,
            SwapPays swap_pays = {});
  // Of a model with recurrent layers: sequences take slots there when they are admitted.
  void set_states(StateSlots* states) { states_ = states->any() ? states : nullptr; }
  void set_starvation_steps(int64_t steps) { starvation_steps_ = steps; }

  void Add(Sequence* sequence);         // of a new group: to the waiting queue
  void AddRunning(Sequence* sequence);  // it has its blocks, and runs in the next step
  // Removes a sequence from either queue. It keeps its blocks.
  void Remove(Sequence* sequence);
  // What runs is recomputed later, as if preempted: beams, or one sequence of another request.
  void Restart(Group& group);
  void Restart(Sequence& sequence);
  bool HasWork() const { return !waiting_.empty() || !running_.empty(); }

  // Empty while every runnable sequence waits for its token mask. Otherwise never empty twice in a row while
  // there is work: beams that were swapped out are swapped in by a step of their own.
  StepPlan Schedule();

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
  // `reserved`. `alone`: the step is still empty.
  std::vector<Scheduled> UnitParts(size_t i, int64_t budget, int64_t reserved, bool alone);
  void ShareCommon(Group& group);
  std::vector<Scheduled> CatchUpParts(Group& group, int64_t left);
  bool Prepare(std::span<const Scheduled> parts, StepPlan* plan);
  void Preempt(size_t begin, StepPlan* plan);  // the unit at running_[begin]
  void ScheduleRunning(int64_t* budget, int64_t decoding, StepPlan* plan);
  void AdmitWaiting(int64_t budget, StepPlan* plan);
  // Admit waiting sequences into the pool, with cached prefixes and swapped-out blocks. False: there is no
  // room.
  bool Admit(Sequence* sequence, int64_t budget, StepPlan* plan, int64_t* tokens);
  bool AdmitGroup(Group& group, int64_t budget, StepPlan* plan, int64_t* tokens);
  bool HasRoom(int64_t missing, const StepPlan& plan) const;
  bool HasStates(int64_t missing) const { return !states_ || missing <= states_->free(); }
  // How many of the leading tokens may come from the prefix cache.
  int64_t UsableTokens(const Sequence& sequence, int64_t most) const;
  void TakeState(Sequence& sequence, StepPlan* plan);  // and what it holds at the end of a cached prefix
  void FreeState(Sequence& sequence);
  void Recompute(Sequence& sequence);  // forgets what is computed
  bool KeepsStates(std::span<Sequence* const> victims) const;
  void SwapIn(Sequence& sequence, int64_t first_block, int64_t first_host_block, StepPlan* plan);
  void AgeWaiting();
  void NoteProgress(const StepPlan& plan);

  BlockManager& blocks_;
  StateSlots* states_ = nullptr;  // none: the model has no recurrent layers
  Budget budget_;
  Preemption preemption_;
  SwapPays swap_pays_;
  int64_t watermark_;  // blocks that stay free when a sequence is admitted
  int64_t starvation_steps_ = kStarvationSteps;
  std::set<Sequence*, Before> waiting_;
  std::vector<Sequence*> running_;  // in order
  int64_t step_ = 0;
  int64_t swaps_ = 0, recomputations_ = 0;
};

}  // namespace celer
