// For tests: the logits of one step.
#pragma once

#include <span>
#include <vector>

#include "engine/runners/runner.h"

namespace celer {

// [rows, vocab] of slices that sample nothing.
inline Result<std::vector<float>> RunLogits(Runner& runner, std::span<const Slice> slices) {
  const Status queued = runner.Queue(slices);
  if (!queued) return queued.error();
  const Result<StepOutput> output = runner.Take();
  if (!output) return output.error();
  return std::vector<float>(output->logits.begin(), output->logits.end());
}

}  // namespace celer
