// Machines that celer runs on, and how near to their peaks it comes there: fitted to the speeds of docs/performance.md,
// which measured_speeds.json repeats.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/embedded_file.h"
#include "celer/limits.h"
#include "celer/options.h"
#include "engine/cost/step_cost.h"
#include "loadtest/simulate.h"

namespace celer::cli {

struct PlanMachine {
  Machine machine;
  bool cuda = false;
  std::string like;             // the machine whose efficiency it is taken to have
  double link_bytes_per_s = 0;  // from one device to another; 0: a CPU
  int64_t per_host = 1;
  // Of this machine, fitted to steps that were timed on it; then it stands for all kinds of weights.
  std::shared_ptr<const struct FittedEfficiency> timed = {};

  bool measured() const { return like == machine.name; }
};

// Weights as far as they decide how near to its peaks a machine comes.
struct WeightKind {
  enum class Width : uint8_t { k16, k8, k4 } width = Width::k16;
  Activations activations = Activations::k16Bit;
  bool row_copies = false;  // weights of 16 bits a second time, row by row

  bool operator<(const WeightKind& other) const;
  std::string ToString() const;  // "16-bit weights with row copies"
};

// How near to the fitted numbers the measured speeds lie.
struct FittedEfficiency {
  Efficiency efficiency = {};
  std::string basis;           // "9 speeds of h200, 16-bit weights"
  std::vector<double> errors;  // |model / measured - 1| of each
  std::vector<MeasuredStep> timed =
      {};  // of this machine and model: what they took corrects the model (StepTime::Correct)
};

struct MeasuredSpeed {
  std::string machine, model;
  WeightOptions weights = {};
  WeightKind kind = {};
  bool prefill = false;
  int64_t context = 0, tokens = 1, batch = 1;
  double tokens_per_s = 0;

  MeasuredStep Step() const;  // the middle one of those that were timed
};

class PlanMachines {
 public:
  static Result<PlanMachines> Parse(std::string_view json);
  static const PlanMachines& BuiltIn();

  // Of a built-in name, an alias ("a100") or a measured one ("neoverse-v1-2c"). Unsupported where celer does not run;
  // NotFound with the nearest name.
  Result<PlanMachine> Find(std::string_view name) const;
  std::vector<std::string> names() const;  // of those that celer runs on
  // Why celer does not run on the others that `celer limits --list` knows.
  const std::map<std::string, std::string>& refused() const { return refused_; }
  std::span<const MeasuredSpeed> speeds() const { return speeds_; }
  std::span<const PlanMachine> machines() const { return machines_; }

  // Of the nearest kind of weights that was measured there.
  Result<FittedEfficiency> EfficiencyOf(const PlanMachine& machine, const WeightKind& kind) const;

 private:
  std::vector<PlanMachine> machines_;
  std::map<std::string, std::string> refused_, aliases_;
  std::vector<MeasuredSpeed> speeds_;
};

// What the kernels of a device multiply in, so that the arithmetic is held against the right peak.
void SetArithmetic(bool cuda, const WeightKind& kind, StepMatrices* matrices);

std::span<const EmbeddedFile> PlanFiles();

}  // namespace celer::cli
