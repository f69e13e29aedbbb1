// What every report of a load says, whoever served it: an engine in this process, or a server.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "loadtest/replay.h"
#include "report/table.h"

namespace celer::cli {

using Facts = std::vector<std::pair<std::string, std::string>>;

double PerSecond(int64_t count, const ServeMetrics& metrics);
std::string Plural(int64_t count, const char* singular);  // "1 step", "1,200 steps"

// "conv.csv: 100 requests over 31.0 s, prompts of ...".
std::string TraceText(const Trace& trace, const TraceScale& scale);

// Requests, tokens and, if there is a target, goodput. `more` ends the line of the tokens.
void AddLoadFacts(const Replay& replay, const ServeMetrics& metrics, const ServeTarget& target,
                  const std::string& more, Facts* facts);
Table LatencyTable(const std::string& title, const ServeMetrics& metrics, const std::string& note);
nlohmann::ordered_json LoadJson(const Replay& replay, const ServeMetrics& metrics, const ServeTarget& target);

}  // namespace celer::cli
