// Decides what the next step computes: every running sequence's next token first, then as much prefill as the
// budget leaves, oldest request first. When the KV is full, the youngest running sequence gives its blocks
// back and is computed again later.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/block_manager.h"
#include "engine/sequence.h"

namespace celer {

struct ScheduledPiece {
  Sequence* sequence;
  int64_t tokens;  // how many of its pending tokens run now
};

class Scheduler {
 public:
  // `reclaim` frees blocks that nobody works on, if there are any, and says whether it did.
  Scheduler(
      BlockManager& blocks, int64_t step_tokens, std::function<bool()> reclaim = [] { return false; })
      : blocks_(blocks), step_tokens_(step_tokens), reclaim_(std::move(reclaim)) {}

  void Add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }
  bool HasWork() const { return !waiting_.empty() || !running_.empty(); }

  // Blocks for the pieces are allocated. Never empty while there is work: Submit() refuses what cannot fit at
  // all.
  std::vector<ScheduledPiece> Schedule();
  // Takes a sequence out, wherever it is; nullptr when it is not here. Its blocks are still its own.
  std::unique_ptr<Sequence> Remove(int64_t id);

  const Sequence* Find(int64_t id) const;  // nullptr when it is not here

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t preemptions() const { return preemptions_; }

 private:
  bool Grow(Sequence& sequence, int64_t tokens);
  // A sequence that goes on from a kept one has that one's blocks while it still waits. The youngest such one
  // loses them, and is computed from its beginning.
  bool ReclaimFromWaiting(const Sequence& keep);
  void PreemptYoungest();

  BlockManager& blocks_;
  int64_t step_tokens_;
  std::function<bool()> reclaim_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // oldest first
  int64_t preemptions_ = 0;
};

}  // namespace celer
