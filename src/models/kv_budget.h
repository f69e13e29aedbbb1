// How many blocks of keys and values there is room for.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace celer {

// What keys and values may take. At most one of `bytes` and `share` is set.
struct KvBudget {
  int64_t bytes = 0;      // this much; 0: not set
  double share = 0;       // of what is free once weights and workspace are there, up to 1; 0: not set
  int64_t context = 0;    // the longest sequence, for which there must be room
  int64_t sequences = 0;  // no more than this many of that length are expected; 0: as many as fit
};

// Blocks for `budget`. `room` is what is free for them, `default_share` how much of it is taken where the
// budget names no size. An error if there is no room for one sequence, or less than `budget.bytes` is free.
Result<int64_t> BlocksWithin(const KvBudget& budget, int64_t room, double default_share, int64_t block_bytes);

// With the states of recurrent layers, `state_bytes` for each sequence, in the same memory.
struct KvPlan {
  int64_t blocks = 0;
  int64_t states = 0;  // slots for sequences and for snapshots
};
Result<KvPlan> PlanWithin(KvBudget budget, int64_t room, double default_share, int64_t block_bytes,
                          int64_t state_bytes);

}  // namespace celer
