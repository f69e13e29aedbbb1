// The flags of `celer limits` as text, and their meaning.
#pragma once

#include <string>
#include <vector>

#include "cli/limits/machine.h"
#include "cli/limits/report.h"

namespace celer::cli {

struct LimitsOptions {
  std::string model;
  MachineFlags machine;
  std::vector<std::string> weight_bits, kv_bits, prompts, contexts;  // empty = defaults
  std::string batch = "1", devices = "1", stages = "1";
  std::string speculate;                                  // "4,0.7"; empty: none
  std::string gpu_memory, gpu_layers, cpu_experts, host;  // of a split over a GPU and a CPU; empty: none
  std::string compute = "auto";
  std::string units = "si";
  std::string svg, html;
  bool json = false, brief = false, list = false;
};

// Everything checked: what comes back can be computed without further errors.
Result<LimitsRequest> MakeLimitsRequest(const LimitsOptions& options);

}  // namespace celer::cli
