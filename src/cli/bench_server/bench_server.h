// celer bench --server URL: a server under load, celer's or any other of OpenAI's API.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "cli/bench_serve/bench_serve.h"
#include "cli/shared/command.h"
#include "loadtest/http/load.h"
#include "loadtest/load_report.h"

namespace celer::cli {

struct ServerFlags {
  std::string url, concurrency, token_ids, api_key, body, save, timeout;
  std::string api = "completions";
  bool insecure = false;

  bool wanted() const { return !url.empty(); }
};

void AddServerFlags(CLI::App& app, ServerFlags* flags);
// All that have an effect with --server, and those that have none without it.
std::span<const std::string_view> ServerFlagNames();
std::span<const std::string_view> ServerOnlyFlags();

struct ServerReport {
  std::string url, model;
  RequestMaker maker;
  LoadShape shape;
  Trace trace;
  TraceScale scale;
  ServeTarget target;
  ServerRun run;
  ServeMetrics metrics;
};

// Checks what can be checked, then plays the load. `model` may be empty: the first that the server names.
Result<ServerReport> RunServer(const ServerFlags& flags, const ServeFlags& load, const std::string& model,
                               const std::function<void(const std::string&)>& progress);

LoadReport Describe(const ServerReport& report);

}  // namespace celer::cli
