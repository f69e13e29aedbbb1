// What `celer bench` says: as text, as JSON with every sample, as a page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/measure.h"
#include "limits/roofline.h"
#include "report/table.h"

namespace celer::cli {

struct BenchReport {
  std::string model;  // as it was asked for
  EngineOptions options;
  BenchPlan plan;
  Engine::Info info;
  Machine machine;
  BenchStart start;
  std::vector<BenchResult> results;
};

// A measured time beside the least that its work takes on this machine.
struct Against {
  RooflineLimit limit;
  double ratio = 0;      // limit / measured: 1 is perfect; 0 where there is nothing to count
  std::string bound_by;  // "memory", "int8 arithmetic"; "" where there is nothing to count
};
Against Compare(const OperatorWork& work, double seconds, const Machine& machine);

// "model", "smollm2: ...".
Facts BenchFacts(const BenchReport& report);
Table BenchTable(const BenchReport& report);
Table OpsTable(const BenchReport& report, const BenchResult& result);
// What lies between the operators: "rest", and on a GPU "gaps", which is negative where kernels overlap.
const char* RestName(const BenchReport& report);

std::string BenchText(const BenchReport& report);
nlohmann::ordered_json BenchJson(const BenchReport& report);
std::string BenchHtml(const BenchReport& report);

}  // namespace celer::cli
