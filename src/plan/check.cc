#include "plan/check.h"

#include <algorithm>
#include <cmath>

#include "base/result.h"

namespace celer::cli {
namespace {

constexpr double kTokens = 50e3;  // of answers that a simulation of small batches makes
constexpr int64_t kFewest = 200, kMost = 20000;

int64_t RequestsFor(const PlanLoad& load, const SteadyLoad& steady) {
  const double sequences = steady.holds ? steady.sequences : 64;
  const double filled = 5 * (sequences + 1), cheap = kTokens / static_cast<double>(load.output);
  return std::clamp(static_cast<int64_t>(std::max(filled, std::min(cheap, 1000.0))), kFewest, kMost);
}

}  // namespace

Result<CheckedLoad> CheckLoad(const Replica& replica, const PlanLoad& load, KvType kv, int64_t chunk,
                              double rate, const SteadyLoad& steady) {
  EngineOptions options;
  options.kv = kv;
  options.chunk = chunk;
  options.mixed_chunk = chunk;
  options.context = std::min(load.longest, replica.model().config.max_positions);
  const MachineShare share = ShareOf(load, rate, RequestsFor(load, steady));
  CheckedLoad checked;
  std::vector<double> ttft, tpot;
  double seconds = 0, prompts = 0, cached = 0, busy_tokens = 0;
  for (const Trace& trace : share.traces) {
    CELER_ASSIGN(const SimulatedEngine made,
                 MakeSimulatedEngine(
                     replica.model(), replica.machine(), replica.efficiency(), options,
                     [&replica](std::span<const SliceShape> slices) { return replica.Seconds(slices); },
                     replica.runs_ahead()));
    SimulatedClock clock(*made.runner);
    CELER_ASSIGN(const Replay replay, PlayTrace(*made.engine, trace, clock, [](int64_t) {}));
    const ServeMetrics metrics = Summarize(replay, {});
    checked.failed += metrics.failed;
    checked.kv_peak = std::max(checked.kv_peak, metrics.kv_peak);
    const auto count = static_cast<double>(replay.requests.size());
    for (size_t i = 0; i < replay.requests.size(); ++i) {
      const ReplayedRequest& request = replay.requests[i];
      prompts += static_cast<double>(request.prompt);
      cached += static_cast<double>(request.cached);
      if (!request.done || static_cast<double>(i) < std::floor(share.from * count) ||
          static_cast<double>(i) >= std::ceil(share.to * count))
        continue;
      ttft.push_back(request.ttft());
      if (request.tokens > 1) tpot.push_back(request.token_gap());
      busy_tokens += request.end_to_end();
    }
    checked.output_per_s += static_cast<double>(metrics.output_tokens);
    seconds += metrics.seconds;
  }
  checked.requests = std::ssize(ttft);
  checked.ttft = PercentilesOf(ttft);
  checked.tpot = PercentilesOf(tpot);
  if (seconds > 0) checked.output_per_s /= seconds;
  if (prompts > 0) checked.hit_rate = cached / prompts;
  if (!ttft.empty()) checked.sequences = rate * busy_tokens / static_cast<double>(ttft.size());
  return checked;
}

}  // namespace celer::cli
