#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/bench_report.h"
#include "cli/bench_serve_report.h"
#include "cli/limits_chart.h"
#include "limits/quantity.h"

namespace celer::cli {
namespace {

// Told apart by people with any colour vision (Okabe and Ito).
constexpr const char* kFirst = "#0072b2";
constexpr const char* kSecond = "#d55e00";
constexpr const char* kMuted = "#52606d";
constexpr double kWidth = 1000, kHeight = 240;  // of one chart with its axes
constexpr int kParts = 400;

using Points = std::vector<std::pair<double, double>>;

struct Line {
  std::string name;
  Points points;
  Stroke stroke;
};

double HighestOf(const std::vector<Line>& lines) {
  double highest = 0;
  for (const Line& line : lines)
    for (const auto& [x, y] : line.points) highest = std::max(highest, y);
  return highest;
}

std::string LineChart(const std::string& id, const std::string& title, const std::string& unit, Axis x,
                      double top, const std::vector<Line>& lines) {
  Chart chart(id, 70, 34, kWidth - 90, kHeight - 84, std::move(x), {.low = 0, .high = top, .label = unit},
              title);
  double at = chart.right();
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {  // names from the right
    chart.PageText(at, 24, line->name, Anchor::kEnd, kMuted);
    at -= 1.1 * TextWidth(line->name, 12) + 10;
    chart.PageLine(at - 22, 20, at, 20, line->stroke);
    at -= 40;
  }
  for (const Line& line : lines) chart.Curve(line.points, line.stroke);
  return fmt::format(
      "<svg width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "role=\"img\" "
      "aria-label=\"{2}\" font-family=\"system-ui, sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"#fff\"/>\n{3}</svg>\n",
      kWidth, kHeight, XmlEscape(title), chart.Finish());
}

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
    std::vector<Line> both = {{report.comparison ? "measured" : name, Over(parts, value), {kFirst, 1.5}}};
    if (report.comparison) both.push_back({"simulated", Over(simulated, value), {kSecond, 1.5}});
    return both;
  };
  std::vector<Line> tokens = lines("tokens", &TimelinePart::tokens_per_step);
  std::vector<Line> kv = lines("KV", &TimelinePart::kv_share);
  for (Line& line : kv)
    for (auto& [x, y] : line.points) y *= 100;
  std::vector<Line> queue = {{"running", Over(parts, &TimelinePart::running), {kFirst, 1.5}},
                             {"waiting", Over(parts, &TimelinePart::waiting), {kSecond, 1.5}}};
  return LineChart("tokens", "Tokens computed in a step", "tokens", time,
                   1.1 * std::max(1.0, HighestOf(tokens)), tokens) +
         LineChart("kv", "KV in use", "percent", time, std::clamp(1.1 * HighestOf(kv), 1.0, 105.0), kv) +
         LineChart("queue", "Sequences", "sequences", time, 1.1 * std::max(1.0, HighestOf(queue)), queue);
}

// The share of requests that were served within a time.
std::string LatencyChart(const ServeReport& report) {
  const auto curve = [](std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    Points points;
    const size_t step = std::max<size_t>(1, seconds.size() / kParts);
    for (size_t i = 0; i < seconds.size(); i += step)
      points.emplace_back(std::max(1e3 * seconds[i], 1e-3),
                          100 * static_cast<double>(i + 1) / static_cast<double>(seconds.size()));
    if (!seconds.empty()) points.emplace_back(std::max(1e3 * seconds.back(), 1e-3), 100);
    return points;
  };
  std::vector<double> ttft, whole;
  for (const ReplayedRequest& request : report.run.replay.requests)
    if (request.done) {
      ttft.push_back(request.ttft());
      whole.push_back(request.end_to_end());
    }
  if (ttft.empty()) return "";
  const std::vector<Line> lines = {{"first token", curve(ttft), {kFirst, 2}},
                                   {"token to token", curve(report.run.replay.gaps), {kSecond, 2, "6 4"}},
                                   {"whole answer", curve(whole), {"#009e73", 2, "2 3"}}};
  double low = 1e300, high = 0;
  for (const Line& line : lines)
    for (const auto& [x, y] : line.points) {
      low = std::min(low, x);
      high = std::max(high, x);
    }
  const Axis axis{.low = 0.9 * low, .high = 1.1 * high, .log = true, .label = "milliseconds"};
  return LineChart("latency", "Served within", "percent", axis, 105, lines);
}

}  // namespace

std::string ServeHtml(const ServeReport& report) {
  std::string body;
  const auto section = [&](const std::string& title, const std::string& content) {
    body += fmt::format("<section><h2>{}</h2>\n{}</section>\n", XmlEscape(title), content);
  };
  const Table latency = LatencyTable(report);
  section(latency.title, TableHtml(latency) + LatencyChart(report));
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
