// From options to the device that runs the model.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "celer/options.h"
#include "engine/runners/runner.h"

namespace celer {

// Loads the model where the options say, with its KV. `kv_host_blocks` is the room for blocks that are
// swapped out.
// With `speculation` mtp it has a predictor, too.
Result<std::unique_ptr<Runner>> MakeRunner(const EngineOptions& options, int64_t kv_host_blocks = 0);

// Whether the model's own layers for multi-token prediction are to draft.
inline bool DraftsWithPredictor(const Speculation& speculation) {
  return speculation.kind == Speculation::Kind::kDraft && speculation.draft == "mtp";
}

}  // namespace celer
