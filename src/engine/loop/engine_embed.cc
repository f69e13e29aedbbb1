// Embedding requests: pooled hidden states of the prompt, no tokens.
#include <cmath>

#include "engine/loop/engine_impl.h"

namespace celer {

bool Engine::Impl::CommitHidden(Sequence& sequence, int64_t tokens, std::span<const float> rows,
                                std::vector<TokenEvent>* events) {
  Group& group = *sequence.group;
  const auto width = static_cast<size_t>(runner->info().config.hidden);
  const int64_t first = sequence.computed + tokens - static_cast<int64_t>(rows.size() / width);
  sequence.computed += tokens;
  if (group.pooled.empty()) group.pooled.resize(width);
  for (size_t r = 0; r * width < rows.size(); ++r) {
    if (first + static_cast<int64_t>(r) < group.pooled_tokens) continue;  // it was preempted since
    for (size_t i = 0; i < width; ++i) {
      const float value = rows[r * width + i];
      if (!std::isfinite(value)) return false;
      group.pooled[i] += double{value};
    }
    group.pooled_tokens = first + static_cast<int64_t>(r) + 1;
  }
  Publish(sequence);
  if (sequence.pending() > 0) return true;
  const double count = group.request.pooling == Pooling::kMean ? static_cast<double>(sequence.count()) : 1;
  TokenEvent event{.finish = FinishReason::kStop};
  event.embedding.reserve(width);
  for (const double sum : group.pooled) event.embedding.push_back(static_cast<float>(sum / count));
  Emit(sequence, std::move(event), events);
  EndAnswer(sequence, events);
  return true;
}

}  // namespace celer
