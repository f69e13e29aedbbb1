#include "engine/kv/state_slots.h"

#include "base/check.h"

namespace celer {

int32_t StateSlots::Vacate() {
  if (!empty_.empty()) {
    const int32_t slot = empty_.back();
    empty_.pop_back();
    return slot;
  }
  if (ever_ < slots_) return static_cast<int32_t>(ever_++);
  if (used_.empty()) return kNone;
  const Snapshot oldest = used_.front();
  used_.pop_front();
  by_content_.erase(oldest.content);
  return oldest.slot;
}

int32_t StateSlots::Take() {
  const int32_t slot = Vacate();
  if (slot != kNone) ++taken_;
  return slot;
}

void StateSlots::Free(int32_t slot) {
  CELER_CHECK(slot >= 0 && slot < slots_);
  CELER_CHECK_GT(taken_, 0);
  --taken_;
  empty_.push_back(slot);
}

int32_t StateSlots::UseSnapshot(PrefixCache::Content content) {
  const auto it = by_content_.find(content);
  CELER_CHECK(it != by_content_.end());
  used_.splice(used_.end(), used_, it->second);
  return it->second->slot;
}

int32_t StateSlots::AddSnapshot(PrefixCache::Content content) {
  if (HasSnapshot(content)) {
    UseSnapshot(content);
    return kNone;
  }
  const int32_t slot = Vacate();
  if (slot != kNone) by_content_[content] = used_.insert(used_.end(), {content, slot});
  return slot;
}

}  // namespace celer
