#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <span>

#include "core/check.h"

namespace celer {
namespace {

constexpr int64_t kWatermarkShare = 100;  // one block in so many

// Beams go on only together: each step chooses among all of them.
bool InStep(const Sequence& sequence) {
  return sequence.group && sequence.group->beams && sequence.pending() == 1;
}

// What a sequence may compute by itself: a beam stops before its last token, and so does one whose token mask
// is not ready.
int64_t AloneTokens(const Sequence& sequence) {
  const bool beam = sequence.group && sequence.group->beams && sequence.output_count() > 0;
  if (!beam && !sequence.sampler.awaits_mask()) return sequence.step_tokens();
  return std::min(sequence.step_tokens(), sequence.pending() - 1);
}

}  // namespace

Scheduler::Scheduler(BlockManager& blocks, Budget budget, Preemption preemption, SwapPays swap_pays)
    : blocks_(blocks),
      budget_(budget),
      preemption_(preemption),
      swap_pays_(std::move(swap_pays)),
      watermark_(blocks.blocks() / kWatermarkShare) {}

void Scheduler::Add(Sequence* sequence) {
  sequence->waits_since = step_;
  CELER_CHECK(waiting_.insert(sequence).second);
}

void Scheduler::AddRunning(Sequence* sequence) {
  sequence->running = true;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, Before()), sequence);
}

void Scheduler::Remove(Sequence* sequence) {
  if (sequence->running)
    std::erase(running_, sequence);
  else
    waiting_.erase(sequence);
  sequence->running = false;
}

int64_t Scheduler::swapped() const {
  return std::count_if(waiting_.begin(), waiting_.end(),
                       [](const Sequence* sequence) { return !sequence->host_table.empty(); });
}

void Scheduler::Preempt(Sequence* victim, Plan* plan) {
  Remove(victim);
  const int64_t computed = victim->computed;
  const bool swap = preemption_ == Preemption::kSwap ||
                    (preemption_ == Preemption::kAuto && swap_pays_ && swap_pays_(computed));
  if (swap && computed > 0) victim->host_table = blocks_.TakeHost(KvBlocksFor(computed));
  for (size_t i = 0; i < victim->host_table.size(); ++i)
    plan->moves.push_back({BlockMove::Kind::kSwapOut, {victim->block_table[i], victim->host_table[i]}});
  if (victim->host_table.empty()) {
    victim->computed = victim->published = 0;
    victim->content = victim->root;
    ++recomputations_;
  } else {
    ++swaps_;
  }
  blocks_.Shrink(&victim->block_table, 0);
  victim->guess.clear();
  Add(victim);
}

size_t Scheduler::Together(size_t i) const {
  if (!InStep(*running_[i])) return 1;
  const Group& group = *running_[i]->group;
  // Those that are not here, or not so far, are waited for.
  for (const auto& sequence : group.sequences)
    if (!sequence->running || sequence->pending() != 1) return 0;
  return group.sequences.size();
}

bool Scheduler::Prepare(std::span<Sequence* const> sequences, int64_t tokens, Plan* plan) {
  int64_t missing = 0;
  for (const Sequence* s : sequences)
    missing += blocks_.Missing(s->block_table, s->computed, s->computed + tokens);
  if (missing > blocks_.free_blocks()) return false;
  for (Sequence* s : sequences)
    CELER_CHECK(blocks_.Prepare(&s->block_table, s->computed, s->computed + tokens, &plan->moves));
  return true;
}

void Scheduler::BePatient() {
  if (step_ % (kPatience / 8) != 0) return;
  std::vector<Sequence*> tired;
  for (Sequence* sequence : waiting_)
    if (step_ - sequence->waits_since >= kPatience) tired.push_back(sequence);
  for (Sequence* sequence : tired) {
    waiting_.erase(sequence);
    sequence->order.priority = std::numeric_limits<int>::min();
    waiting_.insert(sequence);
  }
}

Plan Scheduler::Schedule() {
  ++step_;
  BePatient();
  Plan plan;
  // Sequences that decode wait for no prompt.
  int64_t decoding = 0;
  for (const Sequence* sequence : running_) decoding += sequence->decodes() ? 1 : 0;
  int64_t budget = budget_.step;
  if (decoding > 0 && budget_.mixed > 0) {
    // Where many prompts wait at once, they get their share of a whole step. Four that decode count as one: a
    // device is busier with prompts.
    const auto prompts = static_cast<int64_t>(running_.size() + waiting_.size()) - decoding;
    const int64_t others = std::max<int64_t>(prompts - 1, 0);
    const int64_t share = budget_.step * 4 * others / (4 * others + decoding);
    // One that comes while very many decode must not crawl.
    const int64_t least = std::max<int64_t>(budget_.mixed / 4, 1);
    budget = std::min(budget, std::max({budget_.mixed, decoding + least, share}));
  }

  for (size_t i = 0; i < running_.size() && budget > 0;) {
    Sequence& first = *running_[i];
    const size_t count = Together(i);
    // More beams than a step may have run alone.
    if (count == 0 || (static_cast<int64_t>(count) > budget && !plan.now.empty())) {
      ++i;
      continue;
    }
    int64_t tokens = first.step_tokens();
    if (first.decodes()) {
      decoding -= static_cast<int64_t>(count);
      if (first.sampler.awaits_mask()) tokens = 0;
      if (count == 1) tokens = std::min(tokens, std::max<int64_t>(budget - decoding, 1));
    } else {
      tokens = std::min(tokens, budget - decoding);
      tokens = std::min(tokens, AloneTokens(first));
    }
    if (tokens <= 0) {
      ++i;
      continue;
    }
    bool fits = true;
    while (!(fits = Prepare(std::span(running_).subspan(i, count), tokens, &plan))) {
      if (!first.guess.empty()) {
        first.guess.clear();
        tokens = std::min(tokens, first.step_tokens());
      } else if (running_.size() > i + count) {
        decoding -= running_.back()->decodes() ? 1 : 0;
        Preempt(running_.back(), &plan);
      } else {
        break;
      }
    }
    if (!fits) {  // the last ones themselves do not fit: they wait for the others to finish
      CELER_CHECK_GT(i, 0u);
      while (running_.size() > i) Preempt(running_.back(), &plan);
      break;
    }
    for (const size_t end = i + count; i < end; ++i) plan.now.push_back({running_[i], tokens});
    budget -= tokens * static_cast<int64_t>(count);
  }

  while (budget > 0 && !waiting_.empty()) {
    Sequence* const sequence = *waiting_.begin();
    int64_t tokens = 0;
    if (!Enter(sequence, budget, &plan, &tokens)) break;
    if (tokens > 0) plan.now.push_back({sequence, tokens});
    budget -= tokens;
    waiting_.erase(waiting_.begin());
    AddRunning(sequence);
  }
  return plan;
}

bool Scheduler::Enter(Sequence* sequence, int64_t budget, Plan* plan, int64_t* tokens) {
  const bool swapped = !sequence->host_table.empty();
  PrefixCache::Content content = sequence->root;
  if (content != 0) {
    // At least one token runs: its logits are needed. What was swapped out is needed as far as it goes.
    const int64_t useful = swapped ? sequence->computed : sequence->count() - 1;
    blocks_.Attach(&sequence->block_table, std::span(sequence->tokens).first(static_cast<size_t>(useful)),
                   &content);
  }
  const auto found = static_cast<int64_t>(sequence->block_table.size());
  const int64_t computed = swapped ? sequence->computed : found * kKvBlockTokens;
  const int64_t before = sequence->computed;
  sequence->computed = computed;
  *tokens = std::min(budget, sequence->step_tokens());
  *tokens = std::min(*tokens, AloneTokens(*sequence));
  const int64_t missing = blocks_.Missing(sequence->block_table, found * kKvBlockTokens, computed + *tokens);
  if (missing + (plan->now.empty() ? 0 : watermark_) > blocks_.free_blocks()) {
    blocks_.Shrink(&sequence->block_table, 0);
    sequence->computed = before;
    return false;
  }
  CELER_CHECK(
      blocks_.Prepare(&sequence->block_table, found * kKvBlockTokens, computed + *tokens, &plan->moves));
  for (auto i = static_cast<size_t>(found); i < sequence->host_table.size(); ++i)
    plan->moves.push_back({BlockMove::Kind::kSwapIn, {sequence->host_table[i], sequence->block_table[i]}});
  blocks_.GiveHost(&sequence->host_table);
  // A swapped sequence's own blocks may be known by now to others under the same name.
  sequence->published = found;
  sequence->content = content;
  if (sequence->group && sequence->group->cached < 0) sequence->group->cached = computed;
  return true;
}

}  // namespace celer
