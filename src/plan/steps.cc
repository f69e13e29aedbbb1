#include "plan/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "limits/quantity.h"

namespace celer::cli {
namespace {

constexpr double kRoomForKv = 0.9;    // as MakeSimulatedEngine takes
constexpr double kAllReduceS = 3e-6;  // of a few kilobytes between GPUs of a host
constexpr int64_t kMostSequences = 4096;

// What devices that share every layer send each other, as bytes that would take as long to read from memory.
StepCost WithAllReduces(const CostedModel& model, const PlanMachine& device, const Machine& together,
                        const Efficiency& efficiency, int64_t devices) {
  const auto n = static_cast<double>(devices);
  const double values = 2 * static_cast<double>(model.config.layers * model.config.hidden);  // of a token
  const double seconds = 2 * values * 2 * (n - 1) / n / device.link_bytes_per_s;
  const double bytes = seconds * together.read_bytes_per_s * efficiency.read;
  return {model.config, [cost = model.cost, bytes](const StepShape& shape) {
            std::vector<OperatorWork> work = cost.OfShape(shape);
            work.push_back({.name = "all_reduce",
                            .bytes = bytes * static_cast<double>(shape.sequences * shape.tokens),
                            .flops = {}});
            return work;
          }};
}

bool IsDecode(const SliceShape& slice) {
  return slice.tokens == 1 && slice.rows == 1 && slice.position > 0;
}

}  // namespace

Replica::Replica(const ModelSizes& sizes, KvType kv, const PlanMachine& machine, int64_t devices,
                 const FittedEfficiency& fitted, const DraftAcceptance& draft, int64_t row_copy_bytes)
    : machine_(Together(machine.machine, devices)),
      efficiency_(fitted.efficiency),
      draft_(draft),
      model_(CostModel(sizes, kv)),
      runs_ahead_(machine.cuda && draft.depth == 0) {
  if (devices > 1 && machine.link_bytes_per_s > 0) {
    model_.cost = WithAllReduces(model_, machine, machine_, fitted.efficiency, devices);
    efficiency_.step_s += 2 * static_cast<double>(model_.config.layers) * kAllReduceS;
  }
  model_.resident_bytes += row_copy_bytes;
  time_ = std::make_unique<StepTime>(model_.cost, machine_, efficiency_);
  if (devices == 1) time_->Correct(fitted.timed);
  const double room = machine_.memory_bytes - static_cast<double>(model_.resident_bytes);
  kv_tokens_ = std::max(0.0, kRoomForKv * room / static_cast<double>(model_.kv_bytes_per_token));
}

double Replica::Plain(std::span<const SliceShape> slices) const {
  return time_->Seconds(slices);
}

double Replica::Seconds(std::span<const SliceShape> slices) const {
  if (draft_.depth == 0) return Plain(slices);
  std::vector<SliceShape> prompts, all;
  for (const SliceShape& slice : slices) {
    const int64_t extra = IsDecode(slice) ? draft_.depth : 0;
    all.push_back({.position = slice.position, .tokens = slice.tokens + extra, .rows = slice.rows + extra});
    if (!IsDecode(slice)) prompts.push_back(slice);
  }
  // A step yields several tokens of each sequence, and its prompts once.
  const double alone = prompts.empty() ? 0 : Plain(prompts);
  return alone + (Plain(all) - alone) / draft_.TokensPerStep();
}

double Replica::OfWhole(int64_t sequences, int64_t context, int64_t piece, int64_t position) const {
  const auto [known, is_new] = known_.try_emplace({sequences, context, piece, piece > 0 ? position : 0});
  if (!is_new) return known->second;
  std::vector<SliceShape> slices(static_cast<size_t>(sequences), {.position = context});
  if (piece > 0) slices.push_back({.position = position, .tokens = piece});
  return known->second = slices.empty() ? 0 : Seconds(slices);
}

double Replica::Seconds(double sequences, int64_t context, int64_t piece, int64_t position) const {
  // Counted at whole numbers, of larger ones only at a few, and in proportion between them.
  const auto below = static_cast<int64_t>(sequences);
  int64_t grain = 1;
  while (below >= 16 * grain) grain *= 2;
  const int64_t low = below / grain * grain;
  const double at_low = OfWhole(low, context, piece, position);
  const double at_high = OfWhole(low + grain, context, piece, position);
  if (low == 0 && piece == 0) return at_high;
  return at_low + (sequences - static_cast<double>(low)) / static_cast<double>(grain) * (at_high - at_low);
}

namespace {

// Mean, and those that 50, 90 and 99 % stay below, of a delay that some requests do not have and others have with an
// exponential tail.
Percentiles Waiting(double at_least, double share, double mean_of_waiting) {
  const auto at = [&](double p) {
    return at_least + (share > 1 - p ? mean_of_waiting * std::log(share / (1 - p)) : 0);
  };
  return {.mean = at_least + share * mean_of_waiting,
          .p50 = at(0.5),
          .p90 = at(0.9),
          .p99 = at(0.99),
          .max = at(0.999)};
}

}  // namespace

SteadyLoad SteadyAt(const Replica& replica, const PlanLoad& load, int64_t chunk, double rate) {
  SteadyLoad steady;
  const auto output = static_cast<double>(load.output);
  const int64_t computed =
      std::max<int64_t>(1, std::llround(static_cast<double>(load.prompt) * (1 - load.shared)));
  const int64_t context = load.prompt + load.output / 2;
  const int64_t piece = std::min(chunk, computed),
                position = std::max<int64_t>(0, load.prompt - computed / 2 - piece / 2);
  const double pieces = static_cast<double>(computed) / static_cast<double>(piece);
  if (replica.kv_tokens() < static_cast<double>(load.longest)) {
    steady.why = replica.kv_tokens() > 0
                     ? fmt::format("the KV holds {} tokens", FormatCount(Floor(replica.kv_tokens())))
                     : "the weights do not fit";
    return steady;
  }
  // The mean step, from which follow how many sequences there are and how often a piece of a prompt is in it, from
  // which follows the mean step.
  double step = replica.Seconds(1, context, 0, 0), sequences = 0, with_piece = 0, without = 0;
  for (int i = 0; i < 200; ++i) {
    sequences = rate * (output - 1) * step;
    if (sequences > kMostSequences) break;
    without = replica.Seconds(sequences, context, 0, 0);
    with_piece = replica.Seconds(sequences, context, piece, position);
    steady.prompt_share = rate * pieces * step;
    const double next = without + std::min(1.0, steady.prompt_share) * (with_piece - without);
    const bool done = std::abs(next - step) < 1e-4 * step;
    step = next;
    if (done) break;
  }
  steady.step_s = step;
  steady.sequences = sequences;
  // A prompt takes the steps that its pieces are in, one prompt after the other.
  const double service = pieces * with_piece, busy = rate * service;
  const double held =
      sequences * (static_cast<double>(load.prompt) + output / 2) + busy * static_cast<double>(load.prompt);
  if (sequences > kMostSequences || steady.prompt_share >= 1 || busy >= 1) {
    steady.why = "prompts and answers come faster than they are computed";
    return steady;
  }
  // Some room for the times when more requests than usual are there.
  if (held * (1 + 1 / std::sqrt(std::max(1.0, sequences))) > replica.kv_tokens()) {
    steady.why = fmt::format("the KV holds {} tokens, and {} would be in use",
                             FormatCount(Floor(replica.kv_tokens())), FormatCount(Floor(held)));
    return steady;
  }
  steady.holds = true;
  // Where steps are queued ahead, a prompt waits for half of one and for the next.
  const double until = replica.runs_ahead() ? 1.5 : 0.5;
  steady.ttft = Waiting(service + until * without, busy, service / (2 * (1 - busy)));
  // Sequences come and go: about as many more or fewer as the root of their number, for as long as one is there.
  const double rise = sequences >= 1 ? (step - replica.Seconds(1, context, 0, 0)) / std::sqrt(sequences) : 0;
  steady.tpot = {.mean = step,
                 .p50 = step,
                 .p90 = step + rise * 0.64,
                 .p99 = step + rise * 1.16,
                 .max = step + rise * 2};
  return steady;
}

double SaturationRate(const Replica& replica, const PlanLoad& load, int64_t chunk) {
  const auto holds = [&](double rate) { return SteadyAt(replica, load, chunk, rate).holds; };
  double low = 1e-6;
  if (!holds(low)) return 0;
  double high = 2 * low;
  while (high < 1e9 && holds(high)) {
    low = high;
    high *= 2;
  }
  for (int i = 0; i < 12; ++i) {
    const double mid = std::sqrt(low * high);
    (holds(mid) ? low : high) = mid;
  }
  return low;
}

}  // namespace celer::cli
