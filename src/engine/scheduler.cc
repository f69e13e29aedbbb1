#include "engine/scheduler.h"

#include <algorithm>

#include "core/check.h"

namespace celer {

bool Scheduler::Grow(Sequence& sequence, int64_t tokens) {
  while (!blocks_.Grow(&sequence.block_table, tokens))
    if (!reclaim_() && !ReclaimFromWaiting(sequence)) return false;
  return true;
}

bool Scheduler::ReclaimFromWaiting(const Sequence& keep) {
  for (auto it = waiting_.rbegin(); it != waiting_.rend(); ++it) {
    Sequence& sequence = **it;
    if (&sequence == &keep || sequence.block_table.empty()) continue;
    blocks_.Shrink(&sequence.block_table, 0);
    sequence.computed = sequence.reused = 0;
    return true;
  }
  return false;
}

void Scheduler::PreemptYoungest() {
  std::unique_ptr<Sequence> victim = std::move(running_.back());
  running_.pop_back();
  blocks_.Shrink(&victim->block_table, 0);
  victim->computed = 0;
  waiting_.push_front(std::move(victim));
  ++preemptions_;
}

std::vector<ScheduledPiece> Scheduler::Schedule() {
  int64_t budget = step_tokens_;
  std::vector<ScheduledPiece> pieces;

  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& sequence = *running_[i];
    const int64_t tokens = std::min(budget, sequence.pending());
    bool fits = true;
    while (!(fits = Grow(sequence, sequence.computed + tokens)) && running_.size() > i + 1) PreemptYoungest();
    if (!fits) {  // the youngest itself does not fit: it waits for the others to finish
      CELER_CHECK_GT(i, 0u);
      PreemptYoungest();
      break;
    }
    pieces.push_back({&sequence, tokens});
    budget -= tokens;
  }

  while (budget > 0 && !waiting_.empty()) {
    Sequence& sequence = *waiting_.front();
    const int64_t tokens = std::min(budget, sequence.pending());
    if (!Grow(sequence, sequence.computed + tokens)) break;
    pieces.push_back({&sequence, tokens});
    budget -= tokens;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return pieces;
}

std::unique_ptr<Sequence> Scheduler::Remove(int64_t id) {
  const auto matches = [id](const std::unique_ptr<Sequence>& s) { return s->id == id; };
  const auto take = [&](auto& list) -> std::unique_ptr<Sequence> {
    const auto it = std::find_if(list.begin(), list.end(), matches);
    if (it == list.end()) return nullptr;
    std::unique_ptr<Sequence> found = std::move(*it);
    list.erase(it);
    return found;
  };
  if (auto found = take(running_)) return found;
  return take(waiting_);
}

const Sequence* Scheduler::Find(int64_t id) const {
  for (const auto& sequence : running_)
    if (sequence->id == id) return sequence.get();
  for (const auto& sequence : waiting_)
    if (sequence->id == id) return sequence.get();
  return nullptr;
}

}  // namespace celer
