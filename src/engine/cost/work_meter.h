// What the steps of an engine had to read and compute, and what that takes at best on a machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "celer/engine.h"
#include "engine/cost/step_cost.h"
#include "engine/runners/runner.h"

namespace celer {

class WorkMeter {
 public:
  // `runner` must outlive it.
  explicit WorkMeter(const Runner& runner);

  void set_machine(const Machine& machine);
  void Count(std::span<const Slice> slices, EngineStats* stats);

 private:
  StepCost cost_;
  std::optional<Machine> machine_;
  std::unordered_map<int64_t, OperatorWork> dense_;  // by tokens: all but attention and logits
  std::vector<SliceShape> shapes_;
};

}  // namespace celer
