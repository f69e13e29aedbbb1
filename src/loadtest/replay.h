// Plays a trace against an engine and keeps what happened when.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "engine/cost/step_cost.h"
#include "engine/runners/simulated_runner.h"
#include "limits/roofline.h"
#include "loadtest/trace.h"

namespace celer::cli {

// Seconds since the replay began: of this machine, or of a simulated one.
class ReplayClock {
 public:
  virtual ~ReplayClock() = default;
  virtual double Now() const = 0;
  virtual void WaitUntil(double seconds) = 0;
};

class RealClock : public ReplayClock {
 public:
  double Now() const override;
  void WaitUntil(double seconds) override;

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class SimulatedClock : public ReplayClock {
 public:
  explicit SimulatedClock(SimulatedRunner& runner) : runner_(runner), start_(runner.now()) {}
  double Now() const override { return runner_.now() - start_; }
  void WaitUntil(double seconds) override { runner_.AdvanceTo(start_ + seconds); }

 private:
  SimulatedRunner& runner_;
  double start_;
};

struct ReplayedRequest {
  double arrival_s = 0;
  int64_t prompt = 0, output = 0;  // as the trace asks for
  int64_t cached = 0;              // of the prompt
  int64_t tokens = 0;              // that came
  double first_s = 0, last_s = 0;  // when the first and the last of them came
  bool done = false;               // all of them did
  std::string error = {};          // why not

  double ttft() const { return first_s - arrival_s; }
  double end_to_end() const { return last_s - arrival_s; }
  // The mean time from one token to the next; 0 if there is one token alone.
  double token_gap() const { return tokens > 1 ? (last_s - first_s) / static_cast<double>(tokens - 1) : 0; }
};

// The engine after a step.
struct ReplayedStep {
  double begin_s = 0, end_s = 0;
  int64_t tokens = 0;  // computed in it
  int64_t running = 0, waiting = 0;
  int64_t kv_blocks_used = 0;
};

struct Replay {
  std::vector<ReplayedRequest> requests;  // in the trace's order
  std::vector<ReplayedStep> steps;
  std::vector<double> gaps;  // from one token of a request to its next
  EngineStats before, after;
  uint64_t text = 0;  // a checksum of all answers; it does not depend on the order in which they came
};

// One more value of a checksum.
uint64_t ExtendChecksum(uint64_t hash, uint64_t value);

// Requests are submitted when they arrive, whatever the engine is doing; none waits for another. An error
// only if the device fails. `progress` gets the number of requests done.
Result<Replay> PlayTrace(Engine& engine, const Trace& trace, ReplayClock& clock,
                         const std::function<void(int64_t)>& progress);

// As numpy's percentile: between two values in proportion. `share` is 0 to 1; of nothing it is 0.
double Percentile(std::vector<double> values, double share);

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};
Percentiles PercentilesOf(const std::vector<double>& values);

// Both in seconds; 0: not asked for.
struct ServeTarget {
  double ttft = 0, gap = 0;

  bool asked() const { return ttft > 0 || gap > 0; }
};

struct ServeMetrics {
  int64_t done = 0, failed = 0;
  double seconds = 0;                            // from the first arrival to the last token
  double busy_s = 0;                             // in steps
  Percentiles ttft, gap, token_gap, end_to_end;  // token_gap: the mean gap of each request
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;  // of requests that were done
  int64_t good = 0;                                                 // done, and within the target
  double kv_mean = 0, kv_peak = 0;                                  // share of the blocks; the mean over time
  int64_t swaps = 0, recomputations = 0, evictions = 0, steps = 0;

  double hit_rate() const {
    return prompt_tokens > 0 ? static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens) : 0;
  }
};
// A request is within the target if its first token comes in time and its mean gap is short enough.
ServeMetrics Summarize(const Replay& replay, const ServeTarget& target);

// What the machine needs at least for what was computed: each request's prompt, less what was in the cache,
// and its answer. With perfect batches the weights are read in as few steps as there can be: as many as the
// longest answer has tokens, or more if the KV does not hold all requests at once.
struct LeastWork {
  int64_t steps = 0;
  OperatorWork work = {};
  RooflineLimit limit = {};
};
LeastWork LeastWorkOf(const Replay& replay, const StepCost& cost, const Machine& machine, int64_t kv_tokens);

}  // namespace celer::cli
