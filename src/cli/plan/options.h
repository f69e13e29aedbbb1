// The flags of `celer plan` as text, and their meaning.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/shared/command.h"
#include "plan/plan.h"

namespace celer::cli {

struct PlanFlags {
  std::string model, load, rate, prompt, output, ttft, tpot, percentile = "90";
  std::string rate_scale = "1", length_scale = "1";
  std::vector<std::string> machines, weights, activations, kv, devices, chunks;
  std::string price, count, speculate, efficiency;
  std::string svg, html;
  bool no_simulation = false, json = false, brief = false, list = false;

  void AddTo(CLI::App& app);
};

// Everything but the model is checked before the model is read; `this` is measured here.
Result<PlanQuery> MakePlanQuery(const PlanFlags& flags,
                                const std::function<void(const std::string&)>& progress);

// "2s", "50ms", "800us": seconds.
Result<double> ParseDuration(std::string_view text, std::string_view what);

}  // namespace celer::cli
