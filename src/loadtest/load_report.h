// What every report of a load says, whoever served it: an engine in this process, or a server.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "loadtest/replay.h"
#include "report/page.h"

namespace celer::cli {

double PerSecond(int64_t count, const ServeMetrics& metrics);
std::string Plural(int64_t count, const char* singular);  // "1 step", "1,200 steps"

// "conv.csv: 100 requests over 31.0 s, prompts of ...".
std::string TraceText(const Trace& trace, const TraceScale& scale);

nlohmann::ordered_json TraceJson(const Trace& trace, const TraceScale& scale);

// Requests, tokens and, if there is a target, goodput. `more` ends the line of the tokens.
void AddLoadFacts(const Replay& replay, const ServeMetrics& metrics, const ServeTarget& target,
                  const std::string& more, Facts* facts);
Table LatencyTable(const std::string& title, const ServeMetrics& metrics, const std::string& note);
nlohmann::ordered_json LoadJson(const Replay& replay, const ServeMetrics& metrics, const ServeTarget& target);

// A run in parts of equal time: the members of each part by name, or one of them as a line of a chart.
template <class Part>
nlohmann::ordered_json PartsJson(const std::vector<Part>& parts,
                                 std::initializer_list<std::pair<const char*, double Part::*>> members) {
  nlohmann::ordered_json json;
  for (const auto& [name, member] : members) {
    json[name] = nlohmann::ordered_json::array();
    for (const Part& part : parts) json[name].push_back(part.*member);
  }
  return json;
}
template <class Part>
Points PartsLine(const std::vector<Part>& parts, double Part::*member, double scale = 1) {
  Points points;
  for (const Part& part : parts) points.emplace_back(part.at_s, scale * (part.*member));
  return points;
}

// What is said of a load, as text, as JSON and as a page.
struct LoadReport {
  std::string title, heading;  // of the page
  Facts facts = {};
  Table latency = {};
  Chart served = {};  // ServedWithin()
  std::vector<Chart> over_time = {};
  std::vector<Table> more = {};
  nlohmann::ordered_json json = {};
};
// Percent of the requests over the time that they took; without points if nothing was served.
Chart ServedWithin(const Replay& replay);
// A chart over the seconds of a run, for LoadReport::over_time.
Chart ChartOverTime(const std::string& title, const std::string& unit, double end_s,
                    std::vector<ChartLine> lines);

std::string LoadText(const LoadReport& report);
std::string LoadHtml(const LoadReport& report);

}  // namespace celer::cli
