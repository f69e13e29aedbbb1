// The same load, played on a simulated replica by the engine itself: its scheduler, KV, prefix cache and preemption.
#pragma once

#include <cstdint>

#include "plan/load.h"
#include "plan/steps.h"

namespace celer::cli {

struct CheckedLoad {
  Percentiles ttft, tpot;  // seconds
  int64_t requests = 0;    // that were looked at
  int64_t failed = 0;      // of all
  double output_per_s = 0, kv_peak = 0, hit_rate = 0, sequences = 0;
};

// `steady` says about how many requests are there at once, and so how many it takes until the replica is as full as it
// will be.
Result<CheckedLoad> CheckLoad(const Replica& replica, const PlanLoad& load, KvType kv, int64_t chunk,
                              double rate, const SteadyLoad& steady);

}  // namespace celer::cli
