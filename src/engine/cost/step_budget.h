// The token budget of a step while sequences decode (chunked prefill).
#pragma once

#include <cstdint>

#include "engine/runners/runner.h"

namespace celer {

// Up to the ridge point of the roofline (the first turning point in docs/limits.md) a step is memory-bound:
// it takes as long as reading the weights, however many tokens it has. Beyond it is compute-bound, and each
// token raises the latency of all. So chunks of that size cost next to nothing, and delay decoding sequences
// the least. At most `chunk`. Where this machine was not measured (celer probe), an estimate.
int64_t MixedChunk(const Runner& runner, int64_t chunk);

}  // namespace celer
