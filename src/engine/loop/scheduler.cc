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

// What a preempted beam may recompute on its own: all but its last token.
int64_t CatchUpTokens(const Sequence& sequence) {
  return std::min(sequence.step_tokens(), sequence.pending() - 1);
}

// What a sequence may compute on its own: one whose token mask is not ready stops before its last token.
int64_t AloneTokens(const Sequence& sequence) {
  return sequence.sampler.awaits_mask() ? CatchUpTokens(sequence) : sequence.step_tokens();
}

// Tokens that a unit decodes in this step.
int64_t Decodes(const Sequence& first) {
  if (first.group->together())
    return InStep(*first.group) ? static_cast<int64_t>(first.group->sequences.size()) : 0;
  return first.decodes() && !first.sampler.awaits_mask() ? 1 : 0;
}

// Full blocks of the beams' common prefix, before the last token.
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

// Length of the common prefix of these block tables, in full blocks.
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

void Scheduler::Preempt(size_t begin, StepPlan* plan) {
  const auto from = running_.begin() + static_cast<int64_t>(begin);
  const std::vector<Sequence*> victims(from, from + static_cast<int64_t>(UnitSize(begin)));
  Group& group = *victims[0]->group;
  // Blocks that beams share are swapped once. Beams that are being recomputed are not worth swapping.
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
  const BlockTable taken =
      swap && whole && tokens > 0 && KeepsStates(victims) ? blocks_.AllocateHost(host) : BlockTable();
  group.common_blocks = shared;
  (taken.empty() ? recomputations_ : swaps_) += static_cast<int64_t>(victims.size());
  auto next = taken.begin();
  for (Sequence* const victim : victims) {
    Remove(victim);
    if (taken.empty()) {
      Recompute(*victim);
    } else {
      const int64_t first = victim == victims[0] ? 0 : shared, end = KvBlocksFor(victim->computed);
      for (int64_t i = first; i < end; ++i, ++next) {
        victim->host_table.push_back(*next);
        plan->moves.push_back({BlockMove::Kind::kSwapOut, {victim->block_table[i], *next}});
      }
    }
    blocks_.Shrink(&victim->block_table, 0);
    victim->draft.clear();
    waiting_.insert(victim);
  }
}

void Scheduler::Recompute(Sequence& sequence) {
  FreeState(sequence);
  sequence.computed = sequence.published = sequence.replayed = 0;
  sequence.content = sequence.root;
}

void Scheduler::Restart(Group& group) {
  group.common_blocks = 0;
  for (const auto& sequence : group.sequences) Restart(*sequence);
}

void Scheduler::Restart(Sequence& sequence) {
  ++recomputations_;
  Remove(&sequence);
  Recompute(sequence);
  blocks_.Shrink(&sequence.block_table, 0);
  waiting_.insert(&sequence);
}

bool Scheduler::KeepsStates(std::span<Sequence* const> victims) const {
  if (!states_) return true;
  const auto kept = std::count_if(waiting_.begin(), waiting_.end(), [](const Sequence* sequence) {
    return sequence->state != StateSlots::kNone;
  });
  return kept + std::ssize(victims) <= states_->most_swapped();
}

void Scheduler::FreeState(Sequence& sequence) {
  if (sequence.state == StateSlots::kNone) return;
  states_->Free(sequence.state);
  sequence.state = StateSlots::kNone;
}

int64_t Scheduler::UsableTokens(const Sequence& sequence, int64_t most) const {
  if (!states_) return most;
  // The answers of a request fork in front of the last token of the prompt.
  if (sequence.forks()) most = std::min(most, sequence.prompt_count - 2);
  if (most <= 0) return 0;
  return blocks_.CachedTokens(std::span(sequence.tokens).first(static_cast<size_t>(most)), sequence.root,
                              [&](PrefixCache::Content content) { return states_->HasSnapshot(content); });
}

void Scheduler::TakeState(Sequence& sequence, StepPlan* plan) {
  if (!states_ || sequence.state != StateSlots::kNone) return;
  const int32_t from = sequence.computed > 0 ? states_->UseSnapshot(sequence.content) : StateSlots::kNone;
  sequence.state = states_->Take();
  CELER_CHECK(sequence.state != StateSlots::kNone);
  if (from != StateSlots::kNone && from != sequence.state)
    plan->moves.push_back({BlockMove::Kind::kCopyState, {from, sequence.state}});
}

bool Scheduler::Prepare(std::span<const Scheduled> parts, StepPlan* plan) {
  std::vector<BlockManager::Write> writes;
  for (const auto& [sequence, tokens] : parts)
    writes.push_back({&sequence->block_table, sequence->computed, sequence->computed + tokens});
  return blocks_.Prepare(writes, &plan->moves);
}

void Scheduler::AgeWaiting() {
  if (step_ % std::max<int64_t>(starvation_steps_ / 8, 1) != 0) return;
  std::vector<Group*> starved;
  const auto look = [&](const Sequence* sequence) {
    Group& group = *sequence->group;
    if (step_ - group.advanced_at < starvation_steps_ || group.order.priority == kStarved) return;
    if (sequence->running && sequence->sampler.awaits_mask())
      return;  // it is runnable, only its mask is missing
    if (starved.empty() || starved.back() != &group) starved.push_back(&group);
  };
  for (const Sequence* sequence : waiting_) look(sequence);
  // Also running units that get no tokens: beams that do not fit into a step beside the others.
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

void Scheduler::NoteProgress(const StepPlan& plan) {
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
  // Where many prompts wait at once, they get their share of a full step. Four decoding sequences count as
  // one prompt, which keeps the device busier.
  const auto prompts = static_cast<int64_t>(running_.size() + waiting_.size()) - decoding;
  const int64_t others = std::max<int64_t>(prompts - 1, 0);
  const int64_t share = budget_.step * 4 * others / (4 * others + decoding);
  // A minimum, so that one prompt beside very many decoding sequences is not starved.
  const int64_t least = std::max<int64_t>(budget_.mixed / 4, 1);
  return std::min(budget_.step, std::max({budget_.mixed, decoding + least, share}));
}

std::vector<Scheduled> Scheduler::UnitParts(size_t i, int64_t budget, int64_t reserved, bool alone) {
  Sequence& first = *running_[i];
  Group& group = *first.group;
  std::vector<Scheduled> parts;
  if (group.together()) {
    ShareCommon(group);
    if (!InStep(group)) return CatchUpParts(group, budget - reserved);
    // More beams than the budget allows run in a step of their own.
    if (static_cast<int64_t>(group.sequences.size()) > budget && !alone) return {};
    for (const auto& sequence : group.sequences) parts.push_back({sequence.get(), 1});
    return parts;
  }
  // Decoding sequences never wait for a prompt.
  const int64_t left = first.decodes() ? std::max<int64_t>(budget - reserved, 1) : budget - reserved;
  if (const int64_t tokens = std::min(AloneTokens(first), left); tokens > 0)
    parts.push_back({&first, tokens});
  return parts;
}

// Beams that are recomputed: the others share the first one's blocks as soon as these are computed.
void Scheduler::ShareCommon(Group& group) {
  const Sequence& first = *group.sequences[0];
  if (first.computed < group.common_blocks * kKvBlockTokens) return;
  for (const auto& sequence : group.sequences) {
    if (!sequence->block_table.empty()) continue;
    sequence->block_table = blocks_.Share(first.block_table, static_cast<size_t>(group.common_blocks));
    sequence->computed = group.common_blocks * kKvBlockTokens;
  }
}

// The first beam recomputes the common prefix, then each beam the rest but its last token.
std::vector<Scheduled> Scheduler::CatchUpParts(Group& group, int64_t left) {
  const bool common = group.sequences[0]->computed >= group.common_blocks * kKvBlockTokens;
  std::vector<Scheduled> parts;
  for (const auto& sequence : group.sequences) {
    const int64_t tokens = std::min(left, CatchUpTokens(*sequence));
    if (tokens <= 0) continue;
    parts.push_back({sequence.get(), tokens});
    left -= tokens;
    if (!common) break;
  }
  return parts;
}

StepPlan Scheduler::Schedule() {
  ++step_;
  AgeWaiting();
  StepPlan plan;
  const int64_t decoding = CountDecoding();
  int64_t budget = StepBudget(decoding);
  ScheduleRunning(&budget, decoding, &plan);
  if (!plan.never_fits) AdmitWaiting(budget, &plan);
  NoteProgress(plan);
  return plan;
}

void Scheduler::ScheduleRunning(int64_t* budget, int64_t decoding, StepPlan* plan) {
  for (size_t i = 0; i < running_.size() && *budget > 0;) {
    Sequence& first = *running_[i];
    const size_t end = i + UnitSize(i);
    decoding -= Decodes(first);
    std::vector<Scheduled> parts = UnitParts(i, *budget, decoding, plan->now.empty());
    bool fits = true;
    while (!parts.empty() && !(fits = Prepare(parts, plan))) {
      if (!first.draft.empty()) {
        first.draft.clear();
        parts[0].tokens = std::min(parts[0].tokens, first.step_tokens());
      } else if (blocks_.GiveUpHold()) {
        continue;
      } else if (running_.size() > end) {
        decoding -= Decodes(*running_[LastUnit()]);
        Preempt(LastUnit(), plan);
      } else {
        break;
      }
    }
    if (!fits) {  // even alone at the end it does not fit: it is preempted until the others finish
      if (i == 0) plan->never_fits = first.group;
      Preempt(i, plan);
      if (i == 0 || !plan->now.empty()) return;
      // The units before it left tokens of the budget for it.
      decoding = CountDecoding();
      i = 0;
      continue;
    }
    for (const Scheduled& part : parts) *budget -= part.tokens;
    plan->now.insert(plan->now.end(), parts.begin(), parts.end());
    i = end;
  }
}

void Scheduler::AdmitWaiting(int64_t budget, StepPlan* plan) {
  while (budget > 0 && !waiting_.empty()) {
    Sequence* const first = *waiting_.begin();
    Group& group = *first->group;
    const bool together = group.together();
    int64_t tokens = 0;
    if (!(together ? AdmitGroup(group, budget, plan, &tokens) : Admit(first, budget, plan, &tokens))) {
      if (!running_.empty()) return;
      if (blocks_.GiveUpHold()) continue;
      plan->never_fits = &group;
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

bool Scheduler::HasRoom(int64_t missing, const StepPlan& plan) const {
  return missing + (plan.now.empty() ? 0 : watermark_) <= blocks_.free_blocks();
}

void Scheduler::SwapIn(Sequence& sequence, int64_t first_block, int64_t first_host_block, StepPlan* plan) {
  for (auto i = static_cast<size_t>(first_block), host = static_cast<size_t>(first_host_block);
       host < sequence.host_table.size(); ++i, ++host)
    plan->moves.push_back({BlockMove::Kind::kSwapIn, {sequence.host_table[host], sequence.block_table[i]}});
  blocks_.FreeHost(&sequence.host_table);
}

bool Scheduler::Admit(Sequence* sequence, int64_t budget, StepPlan* plan, int64_t* tokens) {
  const bool swapped = !sequence->host_table.empty();
  if (!HasStates(sequence->state == StateSlots::kNone ? 1 : 0)) return false;
  PrefixCache::Content content = sequence->root;
  if (content != 0) {
    // At least one token runs: its logits are needed. Swapped-out blocks are used as far as they go.
    const int64_t useful = swapped ? sequence->computed : UsableTokens(*sequence, sequence->count() - 1);
    blocks_.Attach(&sequence->block_table, std::span(sequence->tokens).first(useful), &content);
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
  // Blocks of a swapped-out sequence may be in the cache by now, through another request.
  sequence->published = found;
  sequence->content = content;
  TakeState(*sequence, plan);
  if (sequence->group->cached < 0) sequence->group->cached = std::min(computed, sequence->prompt_count);
  return true;
}

bool Scheduler::AdmitGroup(Group& group, int64_t budget, StepPlan* plan, int64_t* tokens) {
  Sequence& first = *group.sequences[0];
  const bool swapped = !first.host_table.empty();
  // There is no state at the end of what they have in common: each is recomputed from its beginning.
  if (!swapped) group.common_blocks = states_ ? 0 : CommonBlocks(group);
  if (!swapped && !HasStates(std::ssize(group.sequences))) return false;
  PrefixCache::Content content = first.root;
  if (content != 0) {
    const int64_t useful = swapped ? first.count() - 1 : UsableTokens(first, first.count() - 1);
    blocks_.Attach(&first.block_table, std::span(first.tokens).first(useful), &content);
  }
  const auto found = static_cast<int64_t>(first.block_table.size());
  // Up to the tokens that they run together with. All of them are admitted, or none.
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
  for (const auto& sequence : group.sequences) TakeState(*sequence, plan);
  *tokens = std::min(budget, CatchUpTokens(first));
  CELER_CHECK(blocks_.Prepare(&first.block_table, first.computed, first.computed + *tokens, &plan->moves));
  return true;
}

}  // namespace celer
