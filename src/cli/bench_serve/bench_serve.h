// celer bench MODEL --serve-trace FILE: an engine under load, real or simulated.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "celer/engine.h"
#include "cli/bench_serve/report.h"
#include "cli/shared/command.h"

namespace celer::cli {

struct ServeFlags {
  std::string trace, poisson;                // one of them, or none: nothing is served
  std::string prompt_tokens, output_tokens;  // with `poisson`
  std::string rate_scale, length_scale, requests, seed;
  std::string target_ttft, target_itl;
  std::string simulate;  // a machine; empty: this one runs it
  bool compare = false;
  Efficiency efficiency = {};

  bool wanted() const { return !trace.empty() || !poisson.empty(); }
};

void AddServeFlags(CLI::App& app, ServeFlags* flags);
// Those that have no effect without a trace.
std::span<const std::string_view> ServeOnlyFlags();

// The load that the flags describe; with neither --serve-trace nor --serve-poisson, requests without times.
Result<Trace> TraceOf(const ServeFlags& flags, TraceScale* scale);
Result<ServeTarget> TargetOf(const ServeFlags& flags);

// Checks what can be checked, then plays the trace. `progress` gets words for a line.
Result<ServeReport> RunServe(const ServeFlags& flags, const std::string& model, EngineOptions options,
                             const std::function<void(const std::string&)>& progress);

}  // namespace celer::cli
