// How many tokens a step should have while sequences wait for their next one.
#pragma once

#include <cstdint>

#include "engine/runners/runner.h"

namespace celer {

// Up to the first turning point a step takes as long as reading the weights, however many tokens it has; from
// there on arithmetic binds it, and each token makes everyone wait longer. So a prompt that is cut there
// costs next to nothing more, and holds up nobody longer than it must. At most `chunk`. Where this machine
// was not measured (celer probe), a guess.
int64_t MixedChunk(const Runner& runner, int64_t chunk);

}  // namespace celer
