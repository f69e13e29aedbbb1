#include "loadtest/charts.h"

#include <fmt/format.h>

#include <algorithm>

namespace celer::cli {
namespace {

constexpr double kChartWidth = 1000;  // of one chart with its axes
constexpr size_t kMostPoints = 400;

using Points = std::vector<std::pair<double, double>>;

Points ShareWithin(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  Points points;
  const size_t step = std::max<size_t>(1, seconds.size() / kMostPoints);
  for (size_t i = 0; i < seconds.size(); i += step)
    points.emplace_back(std::max(1e3 * seconds[i], 1e-3),
                        100 * static_cast<double>(i + 1) / static_cast<double>(seconds.size()));
  if (!seconds.empty()) points.emplace_back(std::max(1e3 * seconds.back(), 1e-3), 100);
  return points;
}

}  // namespace

double HighestOf(const std::vector<ChartLine>& lines) {
  double highest = 0;
  for (const ChartLine& line : lines)
    for (const auto& [x, y] : line.points) highest = std::max(highest, y);
  return highest;
}

std::string LineChart(const std::string& id, const std::string& title, Axis x, Axis y,
                      const std::vector<ChartLine>& lines, double height) {
  Chart chart(id, 70, 34, kChartWidth - 90, height - 84, std::move(x), std::move(y), title);
  double at = chart.right();
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {  // names from the right
    chart.PageText(at, 24, line->name, Anchor::kEnd, kMuted);
    at -= 1.1 * TextWidth(line->name, 12) + 10;
    chart.PageLine(at - 22, 20, at, 20, line->stroke);
    if (line->dots) chart.PageMark(at - 11, 20, Marker::kDot, line->stroke.color);
    at -= 40;
  }
  for (const ChartLine& line : lines) {
    chart.Curve(line.points, line.stroke);
    if (!line.dots) continue;
    for (const auto& [px, py] : line.points) chart.Mark(px, py, Marker::kDot, line.stroke.color);
  }
  return fmt::format(
      "<svg width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "role=\"img\" "
      "aria-label=\"{2}\" font-family=\"system-ui, sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"#fff\"/>\n{3}</svg>\n",
      kChartWidth, height, XmlEscape(title), chart.Finish());
}

std::string LineChart(const std::string& id, const std::string& title, const std::string& unit, Axis x,
                      double top, const std::vector<ChartLine>& lines) {
  return LineChart(id, title, std::move(x), {.low = 0, .high = top, .label = unit}, lines);
}

std::string LatencyChart(const Replay& replay) {
  std::vector<double> ttft, whole;
  for (const ReplayedRequest& request : replay.requests)
    if (request.done) {
      ttft.push_back(request.ttft());
      whole.push_back(request.end_to_end());
    }
  if (ttft.empty()) return "";
  const std::vector<ChartLine> lines = {
      {"first token", ShareWithin(ttft), {kFirstColour, 2}},
      {"token to token", ShareWithin(replay.gaps), {kSecondColour, 2, "6 4"}},
      {"whole answer", ShareWithin(whole), {"#009e73", 2, "2 3"}}};
  double low = 1e300, high = 0;
  for (const ChartLine& line : lines)
    for (const auto& [x, y] : line.points) {
      low = std::min(low, x);
      high = std::max(high, x);
    }
  const Axis axis{.low = 0.9 * low, .high = 1.1 * high, .log = true, .label = "milliseconds"};
  return LineChart("latency", "Served within", "percent", axis, 105, lines);
}

}  // namespace celer::cli
