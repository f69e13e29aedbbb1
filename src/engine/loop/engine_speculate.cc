#include <algorithm>

#include "base/log.h"
#include "engine/loop/engine_impl.h"

namespace celer {

Status Engine::Impl::Propose() {
  if (!speculator) return {};
  return speculator->Propose(scheduler.running_sequences(), blocks.free_blocks(), !ahead.empty(), &mask_work);
}

bool Engine::Impl::CommitDraft(Sequence& sequence, int64_t tokens, std::span<const float> logits,
                               std::vector<TokenEvent>* events) {
  const auto vocab = static_cast<size_t>(info.vocab);
  const auto drafted = static_cast<size_t>(tokens - 1);
  const std::vector<int32_t> draft = std::move(sequence.draft);
  sequence.draft.clear();
  size_t right = 0, verified = 0;
  bool goes_on = true, finite = true;
  for (size_t i = 0; i <= drafted && goes_on && right == i; ++i) {
    // A mask that is not ready: the rest of the draft is dropped.
    if (i > 0 && (!PrepareMask(sequence) || sequence.sampler.awaits_mask())) break;
    ++verified;
    const auto row = logits.subspan(i * vocab, vocab);
    const Distribution* const q = i < drafted ? speculator->DrawnFrom(sequence, i) : nullptr;
    const Sampler::Choice choice =
        q ? sequence.sampler.Verify(row, draft[i], *q) : sequence.sampler.Next(row);
    // Keys and values behind this token are valid only if the next drafted token is accepted.
    ++sequence.computed;
    Publish(sequence);
    finite = choice.token != Sampler::kNoToken;
    if (!finite) break;
    if (i < drafted && choice.token == draft[i]) ++right;
    goes_on = CommitChoice(sequence, choice, events);
  }
  counts.drafted_tokens += static_cast<int64_t>(drafted);
  counts.accepted_tokens += static_cast<int64_t>(right);
  if (counts.accepted.size() <= right) counts.accepted.resize(right + 1);
  ++counts.accepted[right];
  if (!finite) return false;
  if (!goes_on) return true;

  // Attention multiplies what lies behind a sequence's end with zero, and zero times NaN is NaN. If a
  // rejected draft left NaNs there, the last block is recomputed.
  for (size_t i = verified; i <= drafted && finite; ++i)
    finite = LogitsAreFinite(logits.subspan(i * vocab, vocab));
  if (!finite) {
    sequence.computed -= sequence.computed % kKvBlockTokens;
    const BlockTable dirty(sequence.block_table.begin() + sequence.computed / kKvBlockTokens,
                           sequence.block_table.end());
    blocks.Shrink(&sequence.block_table, sequence.computed);
    if (const Status cleared = runner->ClearBlocks(dirty); !cleared)
      log::Warning("{}", cleared.error().message());
    return true;
  }
  blocks.Shrink(&sequence.block_table, sequence.count());
  return true;
}

}  // namespace celer
