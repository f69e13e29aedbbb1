#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/bench/report.h"
#include "cli/bench_serve/report.h"
#include "loadtest/charts.h"

namespace celer::cli {
namespace {

constexpr int kParts = 400;

using Points = std::vector<std::pair<double, double>>;

// How the value of a part goes over time.
Points Over(const std::vector<TimelinePart>& parts, double TimelinePart::*value) {
  Points points;
  for (const TimelinePart& part : parts) points.emplace_back(part.at_s, part.*value);
  return points;
}

std::string TimeCharts(const ServeReport& report) {
  const std::vector<TimelinePart> parts = Timeline(report.run.replay, kParts);
  if (parts.empty()) return "<p>No step was run.</p>\n";
  std::vector<TimelinePart> simulated;
  if (report.comparison) simulated = Timeline(report.comparison->simulated.replay, kParts);
  const double end = std::max(parts.back().at_s, simulated.empty() ? 0 : simulated.back().at_s);
  const Axis time{.low = 0, .high = std::max(end, 1e-9), .label = "seconds"};

  // Running and waiting share a chart; the simulation of the others is drawn beside them.
  const auto lines = [&](const char* name, double TimelinePart::*value) {
    std::vector<ChartLine> both = {
        {report.comparison ? "measured" : name, Over(parts, value), {kFirstColour, 1.5}}};
    if (report.comparison) both.push_back({"simulated", Over(simulated, value), {kSecondColour, 1.5}});
    return both;
  };
  std::vector<ChartLine> tokens = lines("tokens", &TimelinePart::tokens_per_step);
  std::vector<ChartLine> kv = lines("KV", &TimelinePart::kv_share);
  for (ChartLine& line : kv)
    for (auto& [x, y] : line.points) y *= 100;
  std::vector<ChartLine> queue = {{"running", Over(parts, &TimelinePart::running), {kFirstColour, 1.5}},
                                  {"waiting", Over(parts, &TimelinePart::waiting), {kSecondColour, 1.5}}};
  return LineChart("tokens", "Tokens computed in a step", "tokens", time,
                   1.1 * std::max(1.0, HighestOf(tokens)), tokens) +
         LineChart("kv", "KV in use", "percent", time, std::clamp(1.1 * HighestOf(kv), 1.0, 105.0), kv) +
         LineChart("queue", "Sequences", "sequences", time, 1.1 * std::max(1.0, HighestOf(queue)), queue);
}

}  // namespace

std::string ServeHtml(const ServeReport& report) {
  std::string body;
  const auto section = [&](const std::string& title, const std::string& content) {
    body += fmt::format("<section><h2>{}</h2>\n{}</section>\n", XmlEscape(title), content);
  };
  const Table latency = LatencyTable(report);
  section(latency.title, TableHtml(latency) + LatencyChart(report.run.replay));
  section("Over time", TimeCharts(report));
  if (report.comparison) {
    const Table comparison = ComparisonTable(report);
    section(comparison.title, TableHtml(comparison));
  }
  return BenchPage("Serving " + report.model,
                   fmt::format("{} under load{}", report.model, report.simulated ? ", simulated" : ""),
                   ServeFacts(report), body);
}

}  // namespace celer::cli
