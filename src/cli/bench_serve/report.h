// What `celer bench --serve-trace` says.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "loadtest/load_report.h"

namespace celer::cli {

// One replay, with what it is compared with.
struct ServeRun {
  Replay replay;
  ServeMetrics metrics;
  LeastWork least;
  double cpu_s = 0;  // of this process meanwhile, all threads together
};

// A simulation beside what was measured.
struct ServeComparison {
  ServeRun simulated;
  std::vector<MeasuredStep> steps;  // that the model of time was fitted to
  std::vector<double> step_errors;  // |model / measured - 1| of each
  Efficiency efficiency;
};

struct ServeReport {
  std::string model;  // as it was asked for
  EngineOptions options;
  Trace trace;  // as it was played
  TraceScale scale;
  ServeTarget target;
  Engine::Info info;
  Machine machine;
  std::optional<Efficiency> simulated;  // the run is a simulation
  ServeRun run;
  // Of the prompts that were done, what a cache would have found: one without limits, and one as large as the
  // KV that all of it belongs to.
  double hit_bound = 0, hit_bound_here = 0;
  std::optional<ServeComparison> comparison = {};
};

// limit / time in steps: 1 is a machine that cannot do it faster.
double RatioToLeast(const ServeRun& run);

LoadReport Describe(const ServeReport& report);

// The run in at most `count` parts of equal time, for a chart. A step counts in all parts that it touches.
struct TimelinePart {
  double at_s = 0;                  // its middle
  double tokens_per_step = 0;       // on average; 0 if there was no step
  double kv_share = 0;              // the most
  double running = 0, waiting = 0;  // the most
};
std::vector<TimelinePart> Timeline(const Replay& replay, int count);

}  // namespace celer::cli
