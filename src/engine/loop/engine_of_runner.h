// An engine on a runner of one's own: for tests, and for devices that are not real.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "celer/engine.h"
#include "engine/runners/runner.h"
#include "engine/speculate/speculation.h"

namespace celer {

struct EngineOfRunner {
  // Of the options only those of the engine count: `model` as a name, the chunks, the prefix cache,
  // preemption and speculation.
  static std::unique_ptr<Engine> Make(std::unique_ptr<Runner> runner, const EngineOptions& options,
                                      std::unique_ptr<Speculator> speculator = nullptr);

  // For tests: what is wrong with the bookkeeping of blocks and sequences between two steps; "": nothing.
  static std::string FindFlaw(const Engine& engine);
  // For tests: after so many steps without progress a request is starved; and deadlines pass as if it were
  // `now`.
  static void SetPatience(Engine& engine, int64_t steps);
  static void ExpireDeadlines(Engine& engine, std::chrono::steady_clock::time_point now);
};

}  // namespace celer
