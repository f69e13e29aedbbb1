#include "engine/runners/group/micro_batches.h"

#include <algorithm>

namespace celer {

std::vector<int32_t> MicroBatchCuts(int64_t tokens, int stages, int64_t least) {
  constexpr int64_t kEach = 4;
  int64_t best = 1, best_time = 0;
  for (int64_t pieces = 1; pieces <= std::min(kEach * stages, tokens); ++pieces) {
    // In the time of a token.
    const int64_t time = (pieces + stages - 1) * std::max(least, (tokens + pieces - 1) / pieces);
    if (pieces > 1 && time >= best_time) continue;
    best = pieces;
    best_time = time;
  }
  std::vector<int32_t> cuts;
  for (int64_t i = 1; i < best; ++i) cuts.push_back(static_cast<int32_t>(tokens * i / best));
  return cuts;
}

}  // namespace celer
