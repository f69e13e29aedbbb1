#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/loop/engine_impl.h"

namespace celer {

Status Engine::Impl::Propose() {
  if (!speculator) return {};
  return speculator->Propose(scheduler.running_sequences(), blocks.free_blocks(), !ahead.empty(), &mask_work);
}

void Engine::Impl::TakeDraftStates(StepPlan* plan) {
  if (!states.any()) return;
  for (auto& [sequence, tokens] : plan->now) {
    if (tokens <= sequence->pending()) continue;
    sequence->draft_state = states.Take();
    if (sequence->draft_state == StateSlots::kNone) tokens = sequence->pending();
  }
}

void Engine::Impl::SettleDraft(Sequence& sequence, int64_t certain, bool accepted) {
  if (accepted)
    std::swap(sequence.state, sequence.draft_state);
  else
    sequence.computed = certain;
  states.Free(std::exchange(sequence.draft_state, StateSlots::kNone));
  sequence.replayed = sequence.pending() - 1;
  Publish(sequence);
}

bool Engine::Impl::CommitDraft(Sequence& sequence, int64_t drafted, std::span<const float> logits,
                               std::vector<TokenEvent>* events) {
  const auto vocab = static_cast<size_t>(info.vocab);
  const auto most = static_cast<size_t>(drafted);
  const int64_t certain = sequence.count();  // tokens that are no draft
  const std::vector<int32_t> draft = std::move(sequence.draft);
  sequence.draft.clear();
  size_t right = 0, verified = 0;
  bool goes_on = true, finite = true;
  for (size_t i = 0; i <= most && goes_on && right == i; ++i) {
    // A mask that is not ready: the rest of the draft is dropped.
    if (i > 0 && (!PrepareMask(sequence) || sequence.sampler.awaits_mask())) break;
    ++verified;
    const auto row = logits.subspan(i * vocab, vocab);
    const Distribution* const q = i < most ? speculator->DrawnFrom(sequence, i) : nullptr;
    const Sampler::Choice choice =
        q ? sequence.sampler.Verify(row, draft[i], *q) : sequence.sampler.Next(row);
    // Keys and values behind this token are valid only if the next drafted token is accepted.
    sequence.computed = certain + static_cast<int64_t>(i);
    if (!sequence.recurrent) Publish(sequence);
    finite = choice.token != Sampler::kNoToken;
    if (!finite) break;
    if (i < most && choice.token == draft[i]) ++right;
    goes_on = CommitChoice(sequence, choice, events);
  }
  counts.drafted_tokens += drafted;
  counts.accepted_tokens += static_cast<int64_t>(right);
  if (counts.accepted.size() <= right) counts.accepted.resize(right + 1);
  ++counts.accepted[right];
  if (!finite) return false;
  if (!goes_on) return true;

  if (sequence.recurrent) SettleDraft(sequence, certain, verified > most && right == most);
  // Attention multiplies what lies behind a sequence's end with zero, and zero times NaN is NaN. If a
  // rejected draft left NaNs there, the last block is recomputed, or with a recurrent state the whole text.
  for (size_t i = verified; i <= most && finite; ++i)
    finite = LogitsAreFinite(logits.subspan(i * vocab, vocab));
  if (!finite) {
    const int64_t full = sequence.computed - sequence.computed % kKvBlockTokens;
    const BlockTable dirty(sequence.block_table.begin() + full / kKvBlockTokens, sequence.block_table.end());
    if (sequence.recurrent) {
      scheduler.Restart(sequence);
    } else {
      sequence.computed = full;
      blocks.Shrink(&sequence.block_table, full);
    }
    if (const Status cleared = runner->ClearBlocks(dirty); !cleared)
      log::Warning("{}", cleared.error().message());
    return true;
  }
  blocks.Shrink(&sequence.block_table, sequence.count());
  return true;
}

}  // namespace celer
