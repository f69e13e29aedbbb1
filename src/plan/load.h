// What users ask of all machines together, and the share that one of them gets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loadtest/trace.h"

namespace celer::cli {

struct PlanLoad {
  Trace trace = {};  // no requests: random arrivals
  double rate = 0;   // requests per second on average; 0: none is given, as many as the machines hold
  int64_t prompt = 0, output = 0, longest = 0;  // tokens: means, and of the longest request together
  double shared = 0;  // of the prompt tokens, what a cache without limits finds of earlier requests

  bool has_trace() const { return !trace.requests.empty(); }
};

// Requests at random, all of one length.
PlanLoad RandomLoad(double rate, int64_t prompt, int64_t output);
// An error if the requests come all at once, so that there is no rate.
Result<PlanLoad> TraceLoad(Trace trace);

// What one machine of several sees. Requests are dealt at random, those with hashes by their first blocks, so that
// a conversation stays where its prefix is.
struct MachineShare {
  std::vector<Trace> traces;  // of several machines, where one alone would see few requests
  // The requests of each that are looked at: before them the machine fills up, behind them it runs empty.
  double from = 0, to = 1;
};
// `rate` of the machine, about `requests` of them; of a longer trace the busiest stretch.
MachineShare ShareOf(const PlanLoad& load, double rate, int64_t requests);

}  // namespace celer::cli
