// Hands out the slots in which a model with recurrent layers keeps the state of each sequence; the runner has their
// memory.
//
// Slots that no sequence has hold snapshots: the state after a prefix that the prefix cache knows, by its chain's id.
// A cached prefix can be gone on with only where there is a snapshot of it. The snapshot used least recently is evicted
// when a sequence needs the slot.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "engine/kv/prefix_cache.h"

namespace celer {

class StateSlots {
 public:
  static constexpr int32_t kNone = -1;

  explicit StateSlots(int64_t slots) : slots_(slots) {}

  bool any() const { return slots_ > 0; }  // else the model has no state
  int64_t slots() const { return slots_; }
  int64_t free() const { return slots_ - taken_; }  // snapshots among them
  int64_t snapshots() const { return static_cast<int64_t>(used_.size()); }
  // Sequences that are swapped out keep their slots, as many as this in all: the others are for those that run.
  int64_t most_swapped() const { return slots_ / 2; }

  // kNone: all are taken.
  int32_t Take();
  void Free(int32_t slot);

  bool HasSnapshot(PrefixCache::Content content) const { return by_content_.contains(content); }
  // Counts as a use of it. It must exist, and holds until the slot is taken again.
  int32_t UseSnapshot(PrefixCache::Content content);
  // A slot for a new one; kNone if there is one already, or all slots are taken.
  int32_t AddSnapshot(PrefixCache::Content content);

 private:
  struct Snapshot {
    PrefixCache::Content content;
    int32_t slot;
  };
  int32_t Vacate();  // an empty slot, or that of an evicted snapshot

  int64_t slots_;
  int64_t taken_ = 0;  // by sequences
  int64_t ever_ = 0;   // slots below this one were used
  std::vector<int32_t> empty_;
  std::list<Snapshot> used_;  // least recently first
  std::unordered_map<PrefixCache::Content, std::list<Snapshot>::iterator> by_content_;
};

}  // namespace celer
