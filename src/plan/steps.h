// What a step takes on a machine, with drafts and on several devices, and what that gives under a steady load.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "limits/speculation.h"
#include "loadtest/replay.h"
#include "loadtest/simulate.h"
#include "plan/load.h"
#include "plan/machines.h"

namespace celer::cli {

// One replica: a device, or several that share every layer.
class Replica {
 public:
  Replica(const ModelSizes& sizes, KvType kv, const PlanMachine& machine, int64_t devices,
          const FittedEfficiency& fitted, const DraftAcceptance& draft, int64_t row_copy_bytes);

  // Of a step. Where drafts are verified, of so much of it as one token of each sequence takes.
  double Seconds(std::span<const SliceShape> slices) const;
  // The same of a number of sequences, not always whole, that decode after `context` tokens, and `piece` tokens of a
  // prompt from `position` on.
  double Seconds(double sequences, int64_t context, int64_t piece, int64_t position) const;

  const CostedModel& model() const { return model_; }  // with the row copies among its bytes
  const Machine& machine() const { return machine_; }  // all devices together
  const Efficiency& efficiency() const { return efficiency_; }
  double kv_tokens() const { return kv_tokens_; }  // 0: the weights do not fit
  bool runs_ahead() const { return runs_ahead_; }  // a GPU: MakeSimulatedEngine()

 private:
  double Plain(std::span<const SliceShape> slices) const;
  double OfWhole(int64_t sequences, int64_t context, int64_t piece, int64_t position) const;

  Machine machine_;
  Efficiency efficiency_;
  DraftAcceptance draft_;
  CostedModel model_;
  std::unique_ptr<StepTime> time_;
  double kv_tokens_ = 0;
  bool runs_ahead_;
  mutable std::map<std::array<int64_t, 4>, double> known_;  // OfWhole
};

// A load that neither grows nor falls.
struct SteadyLoad {
  bool holds = false;       // or the queue grows
  std::string why = {};     // it does not hold
  double step_s = 0;        // on average
  double sequences = 0;     // that decode at once
  double prompt_share = 0;  // of the steps, those with a piece of a prompt
  Percentiles ttft, tpot;   // in seconds; estimated
};

// `rate` requests per second of one replica whose steps have `chunk` tokens of prompts at most.
SteadyLoad SteadyAt(const Replica& replica, const PlanLoad& load, int64_t chunk, double rate);

// The largest rate that holds; 0 if none does.
double SaturationRate(const Replica& replica, const PlanLoad& load, int64_t chunk);

}  // namespace celer::cli
