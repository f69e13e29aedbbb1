// Data parallelism in one process: engines of one model, each with a KV, a prefix cache and a batch of its own. On a CPU
// they share the weights and divide its threads; else each has a CUDA device, in the order of their numbers.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "celer/engine.h"
#include "engine/runners/make_runner.h"

namespace celer {

class Adapters;

// What they have in common: the first one that is loaded fills it in.
struct EngineShare {
  SharedWeights target = {}, draft = {};
  std::shared_ptr<Adapters> adapters = {};
};

// `options.threads` are those of all engines together, and each has one at least. A `kv_memory` in bytes is each
// engine's; a share of a CPU's memory is that of all of them.
Result<std::vector<std::unique_ptr<Engine>>> LoadReplicas(const EngineOptions& options, int count);

}  // namespace celer
