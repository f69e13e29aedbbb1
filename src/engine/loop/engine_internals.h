// Access to the inside of an Engine: to make one on a given runner, for tests and simulated devices.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "celer/engine.h"
#include "engine/runners/runner.h"
#include "engine/speculate/speculation.h"

namespace celer {

struct EngineInternals {
  // Uses only the engine's own options: `model` as a name, the chunks, the prefix cache, preemption and
  // speculation.
  static std::unique_ptr<Engine> Make(std::unique_ptr<Runner> runner, const EngineOptions& options,
                                      std::unique_ptr<Speculator> speculator = nullptr);

  // For tests: the first invariant of blocks and sequences that does not hold between two steps; "": all
  // hold.
  static std::string CheckInvariants(const Engine& engine);
  // For tests: the steps without progress after which a request is starved; and expires deadlines as of
  // `now`.
  static void SetStarvationSteps(Engine& engine, int64_t steps);
  static void ExpireDeadlines(Engine& engine, std::chrono::steady_clock::time_point now);
};

}  // namespace celer
