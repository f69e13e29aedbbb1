#include "engine/loop/scheduler.h"

#include <algorithm>
#include <limits>
#include <span>

#include "base/check.h"

namespace celer {
namespace {

constexpr int64_t kWatermarkShare = 100;  // one block in so many
constexpr int kStarved = std::numeric_limits<int>::min();

// Beams choose among each other once the last token of each is all that is to be computed.
bool InStep(const Group& group) {
  return std::all_of(group.sequences.begin(), group.sequences.end(),
                     [](const auto& sequence) { return sequence->running && sequence->pending() == 1; });
}

// What one of several beams that were preempted may compute before the others: not its last token.
int64_t TokensBehind(const Sequence& sequence) {
  return std::min(sequence.step_tokens(), sequence.pending() - 1);
}

// What a sequence may compute by itself: one whose token mask is not ready stops before its last token.
int64_t AloneTokens(const Sequence& sequence) {
  return sequence.sampler.awaits_mask() ? TokensBehind(sequence) : sequence.step_tokens();
}

// Tokens that a unit decodes in this step.
int64_t Decodes(const Sequence& first) {
  if (first.group->together())
    return InStep(*first.group) ? static_cast<int64_t>(first.group->sequences.size()) : 0;
  return first.decodes() && !first.sampler.awaits_mask() ? 1 : 0;
}

// Full blocks that all beams begin with, of those that can be computed before the last token.
int64_t CommonBlocks(const Group& group) {
  const Sequence& first = *group.sequences[0];
  auto common = static_cast<size_t>(first.count() - 1);
  for (const auto& sequence : group.sequences) {
    const auto same = std::mismatch(first.tokens.begin(), first.tokens.begin() + static_cast<int64_t>(common),
                                    sequence->tokens.begin(), sequence->tokens.end());
    common = static_cast<size_t>(same.first - first.tokens.begin());
  }
  return static_cast<int64_t>(common) / kKvBlockTokens;
}

// Full blocks of the pool that all these tables begin with.
int64_t SharedBlocks(std::span<Sequence* const> sequences) {
  const BlockTable& first = sequences[0]->block_table;
  int64_t shared = sequences[0]->computed / kKvBlockTokens;
  for (const Sequence* sequence : sequences) {
    const auto same = std::mismatch(first.begin(), first.begin() + shared, sequence->block_table.begin(),
                                    sequence->block_table.end());
    shared = same.first - first.begin();
  }
  return shared;
}

}  // namespace

Scheduler::Scheduler(BlockManager& blocks, Budget budget, Preemption preemption, SwapPays swap_pays)
    : blocks_(blocks),
      budget_(budget),
      preemption_(preemption),
      swap_pays_(std::move(swap_pays)),
      watermark_(blocks.blocks() / kWatermarkShare) {}

void Scheduler::Add(Sequence* sequence) {
  sequence->group->advanced_at = step_;
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

size_t Scheduler::UnitSize(size_t i) const {
  const Group& group = *running_[i]->group;
  return group.together() ? group.sequences.size() : 1;
}

size_t Scheduler::LastUnit() const {
  return running_.size() - UnitSize(running_.size() - 1);
}

void Scheduler::Preempt(size_t begin, Plan* plan) {
  const auto from = running_.begin() + static_cast<int64_t>(begin);
  const std::vector<Sequence*> victims(from, from + static_cast<int64_t>(UnitSize(begin)));
  Group& group = *victims[0]->group;
  // What beams share is swapped once. Those that are being computed again are not worth it.
  const bool beams = group.together();
  const int64_t shared = beams && InStep(group) ? SharedBlocks(victims) : 0;
  int64_t tokens = 0, host = 0;
  for (const Sequence* victim : victims) {
    const int64_t elsewhere = victim == victims[0] ? 0 : shared;
    tokens += victim->computed - elsewhere * kKvBlockTokens;
    host += KvBlocksFor(victim->computed) - elsewhere;
  }
  const bool whole = !beams || InStep(group);
  const bool swap = preemption_ == Preemption::kSwap ||
                    (preemption_ == Preemption::kAuto && swap_pays_ && swap_pays_(tokens));
  const BlockTable taken = swap && whole && tokens > 0 ? blocks_.TakeHost(host) : BlockTable();
  group.common_blocks = shared;
  (taken.empty() ? recomputations_ : swaps_) += static_cast<int64_t>(victims.size());
  auto next = taken.begin();
  for (Sequence* const victim : victims) {
    Remove(victim);
    if (taken.empty()) {
      victim->computed = victim->published = 0;
      victim->content = victim->root;
    } else {
      const int64_t first = victim == victims[0] ? 0 : shared, end = KvBlocksFor(victim->computed);
      for (int64_t i = first; i < end; ++i, ++next) {
        victim->host_table.push_back(*next);
        plan->moves.push_back(
            {BlockMove::Kind::kSwapOut, {victim->block_table[static_cast<size_t>(i)], *next}});
      }
    }
    blocks_.Shrink(&victim->block_table, 0);
    victim->guess.clear();
    waiting_.insert(victim);
  }
}

bool Scheduler::Prepare(std::span<const Scheduled> parts, Plan* plan) {
  std::vector<BlockManager::Write> writes;
  for (const auto& [sequence, tokens] : parts)
    writes.push_back({&sequence->block_table, sequence->computed, sequence->computed + tokens});
  return blocks_.Prepare(writes, &plan->moves);
}

void Scheduler::AgeWaiting() {
  if (step_ % std::max<int64_t>(patience_ / 8, 1) != 0) return;
  std::vector<Group*> starved;
  const auto look = [&](const Sequence* sequence) {
    Group& group = *sequence->group;
    if (step_ - group.advanced_at < patience_ || group.order.priority == kStarved) return;
    if (sequence->running && sequence->sampler.awaits_mask()) return;  // a turn would not help it
    if (starved.empty() || starved.back() != &group) starved.push_back(&group);
  };
  for (const Sequence* sequence : waiting_) look(sequence);
  // Also those that run and have no turn: beams that are more than a step has room for beside the others.
  for (const Sequence* sequence : running_) look(sequence);
  if (starved.empty()) return;
  for (Group* group : starved) {
    for (const auto& sequence : group->sequences)
      if (!sequence->running) waiting_.erase(sequence.get());
    group->order.priority = kStarved;
    for (const auto& sequence : group->sequences)
      if (!sequence->running) waiting_.insert(sequence.get());
  }
  std::sort(running_.begin(), running_.end(), Before());
}

void Scheduler::NoteProgress(const Plan& plan) {
  for (const auto& [sequence, tokens] : plan.now) {
    const int64_t reaches = sequence->computed + tokens;
    if (reaches <= sequence->reached) continue;
    sequence->reached = reaches;
    sequence->group->advanced_at = step_;
  }
}

int64_t Scheduler::CountDecoding() const {
  int64_t tokens = 0;
  for (size_t i = 0; i < running_.size(); i += UnitSize(i)) tokens += Decodes(*running_[i]);
  return tokens;
}

int64_t Scheduler::StepBudget(int64_t decoding) const {
  if (decoding == 0 || budget_.mixed == 0) return budget_.step;
  // Where many prompts wait at once, they get their share of a whole step. Four that decode count as one: a
  // device is busier with prompts.
  const auto prompts = static_cast<int64_t>(running_.size() + waiting_.size()) - decoding;
  const int64_t others = std::max<int64_t>(prompts - 1, 0);
  const int64_t share = budget_.step * 4 * others / (4 * others + decoding);
  // One that comes while very many decode must not crawl.
  const int64_t least = std::max<int64_t>(budget_.mixed / 4, 1);
  return std::min(budget_.step, std::max({budget_.mixed, decoding + least, share}));
}

std::vector<Scheduled> Scheduler::PartsOf(size_t i, int64_t budget, int64_t reserved, bool alone) {
  Sequence& first = *running_[i];
  Group& group = *first.group;
  std::vector<Scheduled> parts;
  if (group.together()) {
    ShareCommon(group);
    if (!InStep(group)) return PartsOfBehind(group, budget - reserved);
    // More beams than a step may have run alone.
    if (static_cast<int64_t>(group.sequences.size()) > budget && !alone) return {};
    for (const auto& sequence : group.sequences) parts.push_back({sequence.get(), 1});
    return parts;
  }
  // Sequences that decode wait for no prompt.
  const int64_t left = first.decodes() ? std::max<int64_t>(budget - reserved, 1) : budget - reserved;
  if (const int64_t tokens = std::min(AloneTokens(first), left); tokens > 0)
    parts.push_back({&first, tokens});
  return parts;
}

// Beams that are computed again: the others go on from the first one's blocks as soon as these are there.
void Scheduler::ShareCommon(Group& group) {
  const Sequence& first = *group.sequences[0];
  if (first.computed < group.common_blocks * kKvBlockTokens) return;
  for (const auto& sequence : group.sequences) {
    if (!sequence->block_table.empty()) continue;
    sequence->block_table = blocks_.Share(first.block_table, static_cast<size_t>(group.common_blocks));
    sequence->computed = group.common_blocks * kKvBlockTokens;
  }
}

// The first beam computes what all have in common, and then each beam the rest but its last token.
std::vector<Scheduled> Scheduler::PartsOfBehind(Group& group, int64_t left) {
  const bool common = group.sequences[0]->computed >= group.common_blocks * kKvBlockTokens;
  std::vector<Scheduled> parts;
  for (const auto& sequence : group.sequences) {
    const int64_t tokens = std::min(left, TokensBehind(*sequence));
    if (tokens <= 0) continue;
    parts.push_back({sequence.get(), tokens});
    left -= tokens;
    if (!common) break;
  }
  return parts;
}

Plan Scheduler::Schedule() {
  ++step_;
  AgeWaiting();
  Plan plan;
  const int64_t decoding = CountDecoding();
  int64_t budget = StepBudget(decoding);
  RunUnits(&budget, decoding, &plan);
  if (!plan.never_fits) EnterWaiting(budget, &plan);
  NoteProgress(plan);
  return plan;
}

void Scheduler::RunUnits(int64_t* budget, int64_t decoding, Plan* plan) {
  for (size_t i = 0; i < running_.size() && *budget > 0;) {
    Sequence& first = *running_[i];
    const size_t end = i + UnitSize(i);
    decoding -= Decodes(first);
    std::vector<Scheduled> parts = PartsOf(i, *budget, decoding, plan->now.empty());
    bool fits = true;
    while (!parts.empty() && !(fits = Prepare(parts, plan))) {
      if (!first.guess.empty()) {
        first.guess.clear();
        parts[0].tokens = std::min(parts[0].tokens, first.step_tokens());
      } else if (running_.size() > end) {
        decoding -= Decodes(*running_[LastUnit()]);
        Preempt(LastUnit(), plan);
      } else {
        break;
      }
    }
    if (!fits) {  // the last unit itself does not fit: it waits for the others to finish
      if (i == 0) plan->never_fits = first.group;
      Preempt(i, plan);
      if (i == 0 || !plan->now.empty()) return;
      // Those before it kept tokens of the step free for it.
      decoding = CountDecoding();
      i = 0;
      continue;
    }
    for (const Scheduled& part : parts) *budget -= part.tokens;
    plan->now.insert(plan->now.end(), parts.begin(), parts.end());
    i = end;
  }
}

void Scheduler::EnterWaiting(int64_t budget, Plan* plan) {
  while (budget > 0 && !waiting_.empty()) {
    Sequence* const first = *waiting_.begin();
    Group& group = *first->group;
    const bool together = group.together();
    int64_t tokens = 0;
    if (!(together ? EnterTogether(group, budget, plan, &tokens) : Enter(first, budget, plan, &tokens))) {
      if (running_.empty()) plan->never_fits = &group;
      return;
    }
    if (tokens > 0) plan->now.push_back({first, tokens});
    budget -= tokens;
    for (const auto& sequence : group.sequences) {
      if (sequence.get() != first && !together) continue;
      waiting_.erase(sequence.get());
      AddRunning(sequence.get());
    }
  }
}

bool Scheduler::HasRoom(int64_t missing, const Plan& plan) const {
  return missing + (plan.now.empty() ? 0 : watermark_) <= blocks_.free_blocks();
}

void Scheduler::SwapIn(Sequence& sequence, int64_t first_block, int64_t first_host_block, Plan* plan) {
  for (auto i = static_cast<size_t>(first_block), host = static_cast<size_t>(first_host_block);
       host < sequence.host_table.size(); ++i, ++host)
    plan->moves.push_back({BlockMove::Kind::kSwapIn, {sequence.host_table[host], sequence.block_table[i]}});
  blocks_.GiveHost(&sequence.host_table);
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
  *tokens = std::min(budget, AloneTokens(*sequence));
  const BlockManager::Write write{&sequence->block_table, found * kKvBlockTokens, computed + *tokens};
  if (!HasRoom(blocks_.Missing({&write, 1}), *plan)) {
    blocks_.Shrink(&sequence->block_table, 0);
    sequence->computed = before;
    return false;
  }
  CELER_CHECK(blocks_.Prepare({&write, 1}, &plan->moves));
  SwapIn(*sequence, found, found, plan);
  // A swapped sequence's own blocks may be known by now to others under the same name.
  sequence->published = found;
  sequence->content = content;
  if (sequence->group->cached < 0) sequence->group->cached = computed;
  return true;
}

bool Scheduler::EnterTogether(Group& group, int64_t budget, Plan* plan, int64_t* tokens) {
  Sequence& first = *group.sequences[0];
  const bool swapped = !first.host_table.empty();
  if (!swapped) group.common_blocks = CommonBlocks(group);
  PrefixCache::Content content = first.root;
  if (content != 0)
    blocks_.Attach(&first.block_table, std::span(first.tokens).first(static_cast<size_t>(first.count() - 1)),
                   &content);
  const auto found = static_cast<int64_t>(first.block_table.size());
  // Up to the tokens that they run together with. Those who cannot come so far need not come.
  const int64_t all = KvBlocksFor(first.count());
  const auto others = static_cast<int64_t>(group.sequences.size()) - 1;
  if (!HasRoom(all - found + others * (all - group.common_blocks), *plan)) {
    blocks_.Shrink(&first.block_table, 0);
    return false;
  }
  first.published = found;
  first.content = content;
  if (swapped) {
    for (const auto& sequence : group.sequences) {
      const bool is_first = sequence.get() == &first;
      if (!is_first)
        sequence->block_table = blocks_.Share(first.block_table, static_cast<size_t>(group.common_blocks));
      const int64_t have = is_first ? found : group.common_blocks;
      CELER_CHECK(
          blocks_.Prepare(&sequence->block_table, have * kKvBlockTokens, first.count(), &plan->moves));
      SwapIn(*sequence, have, is_first ? found : 0, plan);
      if (is_first) continue;
      sequence->published = 0;
      sequence->content = sequence->root;
    }
    return true;
  }
  first.computed = found * kKvBlockTokens;
  *tokens = std::min(budget, TokensBehind(first));
  CELER_CHECK(blocks_.Prepare(&first.block_table, first.computed, first.computed + *tokens, &plan->moves));
  return true;
}

}  // namespace celer
