#include <algorithm>

#include "base/log.h"
#include "engine/loop/engine_impl.h"

namespace celer {

Status Engine::Impl::Propose() {
  if (!speculator) return {};
  return speculator->Propose(scheduler.running_sequences(), blocks.free_blocks(), !ahead.empty(), &mask_work);
}

bool Engine::Impl::CommitGuess(Sequence& sequence, int64_t tokens, std::span<const float> logits,
                               std::vector<TokenEvent>* events) {
  const auto vocab = static_cast<size_t>(info.vocab);
  const auto guessed = static_cast<size_t>(tokens - 1);
  const std::vector<int32_t> guess = std::move(sequence.guess);
  sequence.guess.clear();
  size_t right = 0, verified = 0;
  bool goes_on = true, finite = true;
  for (size_t i = 0; i <= guessed && goes_on && right == i; ++i) {
    // A mask that is not ready: the rest is left to the steps after it.
    if (i > 0 && (!PrepareMask(sequence) || sequence.sampler.awaits_mask())) break;
    ++verified;
    const auto row = logits.subspan(i * vocab, vocab);
    const Distribution* const q = i < guessed ? speculator->DrawnFrom(sequence, i) : nullptr;
    const Sampler::Choice choice =
        q ? sequence.sampler.Verify(row, guess[i], *q) : sequence.sampler.Next(row);
    // Keys and values behind this token are of no use until it is known what follows.
    ++sequence.computed;
    Publish(sequence);
    finite = choice.token != Sampler::kNoToken;
    if (!finite) break;
    if (i < guessed && choice.token == guess[i]) ++right;
    goes_on = CommitChoice(sequence, choice, events);
  }
  counts.drafted_tokens += static_cast<int64_t>(guessed);
  counts.accepted_tokens += static_cast<int64_t>(right);
  if (counts.accepted.size() <= right) counts.accepted.resize(right + 1);
  ++counts.accepted[right];
  if (!finite) return false;
  if (!goes_on) return true;

  // What lies behind a sequence's end is multiplied with zero, and zero times NaN is NaN. If a wrong guess
  // left such, the last block is computed again.
  for (size_t i = verified; i <= guessed && finite; ++i)
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
