#include "engine/kv/kv_event_log.h"

#include <iterator>
#include <utility>

namespace celer {

void KvEventLog::Attach(int64_t blocks) {
  Cleared();
  const std::lock_guard lock(mutex_);
  most_ = kMostChanges + 2 * blocks;
}

void KvEventLog::Cleared() {
  pending_.clear();  // what they say does not hold any more
  pending_.push_back({KvChange::Kind::kCleared});
}

void KvEventLog::EndStep(const PrefixCache& cache) {
  if (pending_.empty() && !behind_) return;
  const std::lock_guard lock(mutex_);
  if (behind_) {
    dropped_ += std::ssize(pending_);
    pending_.clear();
    if (!wants_all_) return;
    behind_ = wants_all_ = false;
    Cleared();
    cache.ForEach([this](const KvChange& change) { pending_.push_back(change); });
  } else if (std::ssize(ready_) + std::ssize(pending_) > most_) {
    behind_ = true;
    dropped_ += std::ssize(ready_) + std::ssize(pending_);
    ready_.clear();
    pending_.clear();
    arrived_.notify_one();
    return;
  }
  if (ready_.empty())
    ready_.swap(pending_);
  else
    ready_.insert(ready_.end(), std::move_iterator(pending_.begin()), std::move_iterator(pending_.end()));
  pending_.clear();
  arrived_.notify_one();
}

std::vector<KvChange> KvEventLog::Take(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  const auto behind = [this] { return behind_ && !wants_all_; };
  arrived_.wait_for(lock, wait, [&] { return !ready_.empty() || behind() || stopped_; });
  if (!behind()) return std::exchange(ready_, {});
  wants_all_ = true;
  return {KvChange{}};
}

void KvEventLog::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  arrived_.notify_all();
}

int64_t KvEventLog::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace celer
