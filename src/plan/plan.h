// The cheapest machines that hold a load within its target. docs/plan.md explains how it is found.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/check.h"
#include "plan/load.h"
#include "plan/machines.h"
#include "plan/prices.h"
#include "plan/steps.h"

namespace celer::cli {

struct PlanTarget {
  double ttft_s = 0, tpot_s = 0;  // 0: any
  int percentile = 90;            // 50, 90 or 99: of the requests, how many are to be within it

  bool Met(const Percentiles& ttft, const Percentiles& tpot) const { return Missed(ttft, tpot).empty(); }
  // "TTFT p90 3.2 s > 2 s", or nothing.
  std::string Missed(const Percentiles& ttft, const Percentiles& tpot) const;
};

struct PlanWeights {
  WeightOptions weights = {};
  Activations activations = Activations::k16Bit;

  std::string ToString() const;  // "int8", "int8+fp8"
};

struct PlanQuery {
  std::string model;
  PlanLoad load;
  PlanTarget target;
  std::vector<PlanMachine> machines;
  std::vector<PlanWeights> weights;
  std::vector<KvType> kv;
  std::vector<int64_t> devices = {1};  // that share every layer
  std::vector<int64_t> chunks;         // empty: those that suit the machine
  int64_t count = 0;                   // replicas; 0: as few as it takes
  DraftAcceptance draft = {};
  std::optional<Prices> prices;
  std::optional<Efficiency> efficiency;  // instead of the measured ones
  bool simulate = true;
};

// One way to run the model, and what it holds.
struct PlanChoice {
  size_t machine = 0;  // in PlanQuery::machines
  int64_t devices = 1;
  PlanWeights weights = {};
  KvType kv = KvType::kF16;
  int64_t chunk = 512;
  std::shared_ptr<const Replica> replica;
  std::shared_ptr<const FittedEfficiency> fitted;
  double saturation = 0;  // requests per second that one replica can take at all
  int level = 0;          // of kPlanLevels parts of it, how many it takes within the target
  bool simulated = false;

  double rate() const;  // within the target
};
inline constexpr int kPlanLevels = 64;

// The best choice of a machine, or the reason why there is none.
struct PlanRow {
  PlanChoice choice;
  std::string machine;
  int64_t replicas = 0;  // 0: none holds the load
  double load_each = 0;  // requests per second
  SteadyLoad steady = {};
  std::optional<CheckedLoad> checked = {};
  std::optional<double> cost;  // per hour, of all
  std::string why = {};        // not this one
  bool can_run = true;         // in this version

  const Percentiles& ttft() const { return checked ? checked->ttft : steady.ttft; }
  const Percentiles& tpot() const { return checked ? checked->tpot : steady.tpot; }
  double sequences() const { return checked ? checked->sequences : steady.sequences; }  // on one replica
};

struct Plan {
  std::vector<PlanRow> rows;  // cheapest first; then those that hold nothing
  std::optional<size_t> winner;
  std::string fewer;                 // why one replica fewer fails; empty: there is one alone
  std::vector<std::string> cheaper;  // what would cost less, and why it fails
  int64_t choices = 0, simulations = 0;
};

// 0 where the machines hold nothing. Never less for a larger load.
int64_t ReplicasFor(double load, double rate_each);

Result<Plan> MakePlan(const PlanQuery& query, const std::function<void(const std::string&)>& progress);

}  // namespace celer::cli
