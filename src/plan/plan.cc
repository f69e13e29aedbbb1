#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "base/check.h"
#include "base/result.h"
#include "limits/quantity.h"
#include "models/config/decoder_config.h"

namespace celer::cli {
namespace {

// Simulated at most, so that a plan takes seconds.
constexpr int kMostSimulated = 4;
constexpr double kNothing = std::numeric_limits<double>::infinity();

double At(const Percentiles& p, int percentile) {
  return percentile == 50 ? p.p50 : percentile == 90 ? p.p90 : p.p99;
}

double BitsOf(const ModelSizes& sizes) {
  const double values = static_cast<double>(CountParams(ToLlmShape(sizes.config, "model")).resident);
  return 8 * static_cast<double>(BytesOf(sizes.matrices)) / values;
}

WeightKind KindOf(const ModelSizes& sizes, const PlanWeights& weights, const PlanMachine& machine,
                  int64_t devices, double* row_copy_bytes) {
  const double bits = BitsOf(sizes);
  WeightKind kind{.width = bits >= 12    ? WeightKind::Width::k16
                           : bits >= 6.5 ? WeightKind::Width::k8
                                         : WeightKind::Width::k4,
                  .activations = machine.cuda ? weights.activations : Activations::k16Bit};
  // --row-copies auto.
  const double layers = static_cast<double>(BytesOf(sizes.matrices) - sizes.matrices.head.bytes);
  const double memory = machine.machine.memory_bytes * static_cast<double>(devices);
  kind.row_copies = machine.cuda && kind.width == WeightKind::Width::k16 && layers <= memory / 5;
  *row_copy_bytes = kind.row_copies ? layers : 0;
  return kind;
}

bool SameButChunk(const PlanChoice& a, const PlanChoice& b) {
  return a.machine == b.machine && a.devices == b.devices && a.kv == b.kv &&
         a.weights.ToString() == b.weights.ToString();
}

// Chunks that are looked at, largest last.
std::vector<int64_t> ChunksOf(const PlanQuery& query, const PlanMachine& machine) {
  if (!query.chunks.empty()) return query.chunks;
  return machine.cuda ? std::vector<int64_t>{256, 512, 1024, 2048, 8192} : std::vector<int64_t>{32, 128, 512};
}

class Planner {
 public:
  Planner(const PlanQuery& query, const std::function<void(const std::string&)>& progress)
      : query_(query), progress_(progress) {}

  Result<Plan> Run() {
    CELER_RETURN_IF_ERROR(Collect());
    plan_.choices = std::ssize(choices_);
    Rank();
    if (query_.simulate) CELER_RETURN_IF_ERROR(Simulate());
    for (size_t i = 0; i < query_.machines.size(); ++i)
      for (const int64_t devices : query_.devices) CELER_RETURN_IF_ERROR(AddRow(i, devices));
    std::stable_sort(plan_.rows.begin(), plan_.rows.end(),
                     [&](const PlanRow& a, const PlanRow& b) { return RowCost(a) < RowCost(b); });
    CELER_RETURN_IF_ERROR(Explain());
    return std::move(plan_);
  }

 private:
  Status Collect();
  Status AddChoices(size_t machine, int64_t devices, const PlanWeights& weights, const ModelSizes& sizes);
  void Rank();
  Status Simulate();
  Status AddRow(size_t machine, int64_t devices);
  Status Explain();
  std::string WhyNot(const PlanRow& row, const PlanChoice& choice, int64_t replicas);

  bool Runs(const PlanChoice& choice) const { return choice.devices == 1; }
  std::optional<double> PriceOf(const PlanChoice& choice) const {
    if (!query_.prices) return 1.0 * static_cast<double>(choice.devices);
    const auto price = query_.prices->Of(query_.machines[choice.machine].machine.name);
    if (!price) return std::nullopt;
    return *price * static_cast<double>(choice.devices);
  }
  int64_t ReplicasOf(double rate) const {
    if (rate <= 0) return 0;
    if (query_.load.rate == 0) return std::max<int64_t>(1, query_.count);
    const int64_t needed = ReplicasFor(query_.load.rate, rate);
    if (query_.count == 0) return needed;
    return needed <= query_.count ? query_.count : 0;
  }
  // What is made small: the cost of the load, or of a request where there is no load. Falls as the rate grows.
  double CostAt(const PlanChoice& choice, double rate) const {
    const auto price = PriceOf(choice);
    if (!price || rate <= 0) return kNothing;
    if (query_.load.rate == 0) return *price / rate;
    const int64_t replicas = ReplicasOf(rate);
    return replicas == 0 ? kNothing : *price * static_cast<double>(replicas);
  }
  double RowCost(const PlanRow& row) const {
    if (row.replicas == 0) return kNothing;
    return row.can_run ? CostAt(row.choice, row.choice.rate()) : 1e300;
  }
  bool Estimated(const PlanChoice& choice, int level) const {
    const SteadyLoad steady = SteadyAt(*choice.replica, query_.load, choice.chunk, RateAt(choice, level));
    return steady.holds && query_.target.Met(steady.ttft, steady.tpot);
  }
  static double RateAt(const PlanChoice& choice, int level) {
    return choice.saturation * level / kPlanLevels;
  }
  Result<CheckedLoad> Check(const PlanChoice& choice, double rate) {
    ++plan_.simulations;
    const SteadyLoad steady = SteadyAt(*choice.replica, query_.load, choice.chunk, rate);
    return CheckLoad(*choice.replica, query_.load, choice.kv, choice.chunk, rate, steady);
  }
  // The best choice of a machine: the first in order_.
  const PlanChoice* BestOf(size_t machine, int64_t devices) const {
    const PlanChoice* best = nullptr;
    double least = kNothing;
    for (const size_t i : order_) {
      const PlanChoice& choice = choices_[i];
      if (choice.machine != machine || choice.devices != devices) continue;
      const double cost = query_.prices && !PriceOf(choice) ? 1 / std::max(1e-300, choice.rate())
                                                            : CostAt(choice, choice.rate());
      if (best == nullptr || cost < least) {
        best = &choice;
        least = cost;
      }
    }
    return best;
  }

  const PlanQuery& query_;
  const std::function<void(const std::string&)>& progress_;
  std::vector<PlanChoice> choices_;
  std::vector<size_t> order_;  // of choices_, cheapest first
  std::map<std::pair<std::string, WeightKind>, std::shared_ptr<const FittedEfficiency>> fitted_;
  Plan plan_;
};

Status Planner::Collect() {
  for (const PlanWeights& weights : query_.weights) {
    CELER_ASSIGN(const ModelSizes sizes, LoadModelSizes(query_.model, weights.weights));
    if (query_.load.longest > sizes.config.max_positions)
      return Error::Invalid("the longest request has ", query_.load.longest, " tokens and ", query_.model,
                            " ", sizes.config.max_positions, " positions; try shorter ones");
    for (size_t i = 0; i < query_.machines.size(); ++i) {
      progress_(fmt::format("{} on {}", weights.ToString(), query_.machines[i].machine.name));
      for (const int64_t devices : query_.devices)
        CELER_RETURN_IF_ERROR(AddChoices(i, devices, weights, sizes));
    }
  }
  return {};
}

Status Planner::AddChoices(size_t index, int64_t devices, const PlanWeights& weights,
                           const ModelSizes& loaded) {
  const PlanMachine& machine = query_.machines[index];
  if (devices > machine.per_host || (!machine.cuda && weights.weights.format == WeightFormat::kFp8))
    return {};
  if (weights.activations != Activations::k16Bit &&
      (!machine.cuda || !machine.machine.flops.contains(Name(weights.activations))))
    return {};
  double row_copies = 0;
  const WeightKind kind = KindOf(loaded, weights, machine, devices, &row_copies);
  auto& fitted = fitted_[{machine.timed ? machine.machine.name : machine.like, kind}];
  if (!fitted && query_.efficiency) {
    fitted = std::make_shared<FittedEfficiency>(
        FittedEfficiency{.efficiency = *query_.efficiency, .basis = "--efficiency", .errors = {}});
  } else if (!fitted && machine.timed) {
    fitted = machine.timed;
  } else if (!fitted) {
    CELER_ASSIGN(FittedEfficiency made, PlanMachines::BuiltIn().EfficiencyOf(machine, kind));
    fitted = std::make_shared<FittedEfficiency>(std::move(made));
  }
  ModelSizes sizes = loaded;
  // A file's matrices already say what this machine multiplies in.
  if (!machine.timed) SetArithmetic(machine.cuda, kind, &sizes.matrices);
  for (const KvType kv : query_.kv) {
    const auto replica = std::make_shared<Replica>(sizes, kv, machine, devices, *fitted, query_.draft,
                                                   static_cast<int64_t>(row_copies));
    for (const int64_t chunk : ChunksOf(query_, machine)) {
      PlanChoice choice{.machine = index,
                        .devices = devices,
                        .weights = weights,
                        .kv = kv,
                        .chunk = chunk,
                        .replica = replica,
                        .fitted = fitted};
      choice.saturation = SaturationRate(*replica, query_.load, chunk);
      int low = 0, high = kPlanLevels + 1;  // the first holds or is 0, the second does not
      while (choice.saturation > 0 && high - low > 1) {
        const int mid = (low + high) / 2;
        (Estimated(choice, mid) ? low : high) = mid;
      }
      choice.level = low;
      choices_.push_back(std::move(choice));
    }
  }
  return {};
}

// Of what costs the same, the more exact and then the one with more room.
void Planner::Rank() {
  order_.resize(choices_.size());
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
  const auto key = [&](size_t i) {
    const PlanChoice& c = choices_[i];
    const double weights = static_cast<double>(c.replica->model().resident_bytes);
    return std::tuple(Runs(c) ? 0 : 1, CostAt(c, c.rate()), !c.simulated,
                      c.weights.activations != Activations::k16Bit, -weights,
                      -static_cast<double>(c.replica->model().kv_bytes_per_token), -c.rate(), i);
  };
  std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
}

// The cheapest by estimate first, until what is left cannot be cheaper: a simulation only ever lowers a rate.
Status Planner::Simulate() {
  double best = kNothing;
  int simulated = 0;
  for (const size_t i : order_) {
    PlanChoice& choice = choices_[i];
    if (choice.level == 0) continue;
    if (!Runs(choice) || CostAt(choice, choice.rate()) >= best || simulated >= kMostSimulated) break;
    ++simulated;
    const int highest = choice.level;
    int low = 0, high = kPlanLevels + 1;
    while (high - low > 1) {
      // As soon as both ends cost the same, it is known.
      if (low > 0 && query_.load.rate > 0 &&
          CostAt(choice, RateAt(choice, low)) == CostAt(choice, RateAt(choice, std::min(highest, high - 1))))
        break;
      const int mid = (low + high) / 2;
      bool met = mid <= highest;
      if (met) {
        progress_(fmt::format("simulating {} of {} requests/s", query_.machines[choice.machine].machine.name,
                              FormatNumber(RateAt(choice, mid))));
        CELER_ASSIGN(const CheckedLoad checked, Check(choice, RateAt(choice, mid)));
        met = checked.requests > 0 && checked.failed == 0 && query_.target.Met(checked.ttft, checked.tpot);
      }
      (met ? low : high) = mid;
    }
    choice.level = low;
    choice.simulated = true;
    best = std::min(best, CostAt(choice, choice.rate()));
    // What differs in the chunk alone is about as good; its estimate would stand in front of what was played.
    for (PlanChoice& other : choices_)
      if (choice.level > 0 && !other.simulated && SameButChunk(choice, other)) other.level = 0;
  }
  Rank();
  return {};
}

std::string Planner::WhyNot(const PlanRow& row, const PlanChoice& choice, int64_t replicas) {
  // Where even the lightest load is too much, that says more than the whole load would.
  const double load =
      replicas > 0 ? query_.load.rate / static_cast<double>(replicas) : std::max(1e-6, RateAt(choice, 1));
  const SteadyLoad steady = SteadyAt(*choice.replica, query_.load, choice.chunk, load);
  if (!steady.holds) return steady.why;
  const std::string missed = query_.target.Missed(steady.ttft, steady.tpot);
  return missed.empty() && row.checked ? query_.target.Missed(row.checked->ttft, row.checked->tpot) : missed;
}

Status Planner::AddRow(size_t machine, int64_t devices) {
  const PlanChoice* best = BestOf(machine, devices);
  if (best == nullptr) return {};
  PlanRow row;
  row.choice = *best;
  row.machine = query_.machines[machine].machine.name;
  row.can_run = Runs(*best);
  row.replicas = ReplicasOf(best->rate());
  const auto price = query_.prices ? PriceOf(*best) : std::nullopt;
  if (!row.can_run)
    row.why = "needs tensor parallelism, which was not measured on several devices";
  else if (query_.prices && !price)
    row.why = "the prices do not name it";
  const int64_t shown = row.replicas > 0 ? row.replicas : query_.count;
  if (shown == 0) {
    const std::string reason = WhyNot(row, *best, 0);
    const bool weights = best->replica->kv_tokens() <= 0;
    row.why =
        fmt::format("{}{}", reason,
                    weights && row.can_run
                        ? fmt::format(": {} of {}",
                                      FormatBytes(static_cast<double>(best->replica->model().resident_bytes)),
                                      FormatBytes(best->replica->machine().memory_bytes))
                        : "");
    plan_.rows.push_back(std::move(row));
    return {};
  }
  row.load_each = query_.load.rate > 0 ? query_.load.rate / static_cast<double>(shown) : best->rate();
  row.steady = SteadyAt(*best->replica, query_.load, best->chunk, row.load_each);
  if (price) row.cost = *price * static_cast<double>(shown);
  if (best->simulated && row.load_each > 0) {
    CELER_ASSIGN(row.checked, Check(*best, row.load_each));
  }
  if (row.replicas == 0 && row.why.empty()) row.why = WhyNot(row, *best, shown);
  plan_.rows.push_back(std::move(row));
  return {};
}

Status Planner::Explain() {
  for (size_t i = 0; i < plan_.rows.size() && !plan_.winner; ++i)
    if (plan_.rows[i].can_run && RowCost(plan_.rows[i]) < 1e300) plan_.winner = i;
  if (!plan_.winner) return {};
  const PlanRow& winner = plan_.rows[*plan_.winner];
  if (query_.load.rate == 0) return {};
  if (winner.replicas > 1 && query_.count == 0) {
    const int64_t fewer = winner.replicas - 1;
    std::string why = WhyNot(winner, winner.choice, fewer);
    const double load = query_.load.rate / static_cast<double>(fewer);
    if (winner.choice.simulated &&
        (why.empty() || SteadyAt(*winner.choice.replica, query_.load, winner.choice.chunk, load).holds)) {
      CELER_ASSIGN(const CheckedLoad checked, Check(winner.choice, load));
      if (const std::string missed = query_.target.Missed(checked.ttft, checked.tpot); !missed.empty())
        why = missed;
    }
    if (why.empty()) why = "within a part in 64 of what it holds";
    plan_.fewer = fmt::format("{} x {}: {}", FormatCount(fewer), winner.machine, why);
  }
  const double cost = RowCost(winner);
  for (PlanRow& row : plan_.rows) {
    if (&row == &winner || !row.can_run || row.replicas == 0) continue;
    const auto price = PriceOf(row.choice);
    if (!price) continue;
    if (row.why.empty()) row.why = fmt::format("{} x the cost", FormatNumber(RowCost(row) / cost));
    const auto most = static_cast<int64_t>(std::ceil(cost / *price)) - 1;
    if (most < 1 || most >= row.replicas || std::ssize(plan_.cheaper) >= 5) continue;
    plan_.cheaper.push_back(
        fmt::format("{} x {}: {}", FormatCount(most), row.machine, WhyNot(row, row.choice, most)));
  }
  return {};
}

}  // namespace

std::string PlanTarget::Missed(const Percentiles& ttft, const Percentiles& tpot) const {
  const auto missed = [&](const char* name, const Percentiles& values, double limit) {
    const double value = At(values, percentile);
    if (limit <= 0 || value <= limit) return std::string();
    return fmt::format("{} p{} {} > {}", name, percentile, FormatSeconds(value), FormatSeconds(limit));
  };
  const std::string first = missed("TTFT", ttft, ttft_s), gap = missed("TPOT", tpot, tpot_s);
  return first.empty() || gap.empty() ? first + gap : first + ", " + gap;
}

std::string PlanWeights::ToString() const {
  const std::string text = weights.ToString();
  return activations == Activations::k16Bit ? text : fmt::format("{}+{}", text, Name(activations));
}

double PlanChoice::rate() const {
  return saturation * level / kPlanLevels;
}

int64_t ReplicasFor(double load, double rate_each) {
  if (!(rate_each > 0)) return 0;
  const double replicas = std::ceil(load / rate_each);
  return replicas < 1 ? 1 : replicas > 1e15 ? 0 : static_cast<int64_t>(replicas);
}

Result<Plan> MakePlan(const PlanQuery& query, const std::function<void(const std::string&)>& progress) {
  CELER_CHECK(!query.machines.empty() && !query.weights.empty() && !query.kv.empty() &&
              !query.devices.empty());
  return Planner(query, progress).Run();
}

}  // namespace celer::cli
