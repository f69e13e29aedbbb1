// `celer bench --ladder MODEL`: what each step from plain launches to int4 weights brings on this GPU, one
// after the other, as gpt-fast reported it.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "cli/bench/measure.h"
#include "limits/roofline.h"
#include "report/table.h"

namespace celer::cli {

struct LadderStep {
  const char* name;
  WeightOptions weights;
  StepLaunch launch;
};
// From the bottom up; each measured by itself with random weights.
std::span<const LadderStep> LadderSteps();

struct LadderRung {
  LadderStep step;
  int64_t weight_bytes = 0;  // read by one step
  BenchResult result;
};

struct LadderReport {
  std::string model;
  std::string device;
  Machine machine;
  BenchPlan plan;
  std::vector<LadderRung> rungs;
};

Result<LadderReport> MeasureLadder(const std::string& preset, const DeviceOptions& device, int64_t repeat,
                                   const Bench::Progress& progress);

Table LadderTable(const LadderReport& report);
std::string LadderText(const LadderReport& report);
nlohmann::ordered_json LadderJson(const LadderReport& report);
std::string LadderHtml(const LadderReport& report);

}  // namespace celer::cli
