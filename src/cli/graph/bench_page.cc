#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/graph/bench.h"
#include "limits/quantity.h"
#include "report/page.h"

namespace celer::cli {
namespace {

constexpr const char* kOther = "#9aa5b1";

// A depthwise convolution is bound by memory where a full one is not: they get colours of their own.
std::string Kind(const NodeTime& node) {
  return node.op == "Conv" && node.kernel.find("depthwise") != std::string::npos ? "Conv, depthwise"
                                                                                 : node.op;
}

std::map<std::string, const char*> ColorsOf(const GraphTimes& times) {
  std::map<std::string, double> seconds;
  for (const NodeTime& node : times.nodes)
    if (node.work.flops > 0) seconds[Kind(node)] += node.seconds;
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [op, time] : seconds) order.emplace_back(-time, op);
  std::sort(order.begin(), order.end());
  std::map<std::string, const char*> out;
  for (size_t i = 0; i < order.size(); ++i)
    out[order[i].second] = i + 1 < std::size(kLineColors) ? kLineColors[i] : kOther;
  return out;
}

// One point per node: how many FLOP it does for each byte, and how fast it does them. Its area is its time.
Chart RooflineOf(const GraphTimes& times) {
  const Roof& roof = times.roof;
  std::vector<const NodeTime*> nodes;
  for (const NodeTime& node : times.nodes)
    if (node.work.flops > 0 && node.work.bytes() > 0 && node.seconds > 0) nodes.push_back(&node);
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const NodeTime* a, const NodeTime* b) { return a->seconds > b->seconds; });
  const double ridge = RidgeIntensity(roof);
  double low = ridge / 10, high = ridge * 10, slowest = roof.flops_per_s / 100, fastest = roof.flops_per_s;
  for (const NodeTime* node : nodes) {
    low = std::min(low, node->intensity()), high = std::max(high, node->intensity());
    slowest = std::min(slowest, node->work.flops / node->seconds);
    fastest = std::max(fastest, node->work.flops / node->seconds);
  }
  Chart chart{.title = fmt::format("{} thread{}", times.threads, times.threads == 1 ? "" : "s"),
              .x = {.low = low / 2, .high = high * 2, .log = true, .label = "FLOP per byte moved"},
              .y = {.low = slowest / 2, .high = fastest * 3, .log = true, .label = "FLOP/s"},
              .lines = {{"the limit",
                         {{low / 2, AttainableFlops(low / 2, roof)},
                          {ridge, roof.flops_per_s},
                          {high * 2, roof.flops_per_s}},
                         {kInk, 2.5}}},
              .ridge = ridge,
              .note = fmt::format("{}, {}", FormatFlops(roof.flops_per_s), FormatBandwidth(roof.bytes_per_s)),
              .height = 484};
  const auto colors = ColorsOf(times);
  for (size_t i = 0; i < nodes.size(); ++i) {  // the small ones on top
    const NodeTime& node = *nodes[i];
    const std::string name = fmt::format("{} {}", node.op, node.shape);
    chart.marks.push_back({.x = node.intensity(),
                           .y = node.work.flops / node.seconds,
                           .color = colors.at(Kind(node)),
                           .radius = 3 + 11 * std::sqrt(node.seconds / nodes[0]->seconds),
                           .label = i < 6 ? name : "",
                           .below = i % 2 == 0,
                           .tip = fmt::format("{} {}: {}", node.name, name, FormatSeconds(node.seconds))});
  }
  for (const auto& [op, color] : colors)
    if (color != kOther) chart.lines.push_back({op, {}, {color, 0}, true});
  return chart;
}

std::vector<PageBar> OperatorBars(const GraphTimes& times) {
  const std::vector<OperatorTime> groups = ByOperator(times);
  double sum = 0;
  for (const OperatorTime& group : groups) sum += group.seconds;
  const double longest = groups.empty() ? 1 : std::max(groups[0].seconds, 1e-12);
  std::vector<PageBar> bars;
  for (const OperatorTime& group : groups)
    bars.push_back({.name = group.op + (group.kernel == "reference" ? "" : ", " + group.kernel),
                    .text = fmt::format("{}, {:.1f} %", FormatSeconds(group.seconds),
                                        sum > 0 ? 100 * group.seconds / sum : 0),
                    .bar = group.seconds / longest,
                    .floor = std::min(group.limit, group.seconds) / longest});
  return bars;
}

}  // namespace

std::string GraphBenchHtml(const GraphBench& bench) {
  Page page("Speed of " + bench.path, fmt::format("How near the limit {} runs", bench.path),
            GraphBenchFacts(bench));
  const auto section = [&](const Table& table, const std::vector<PageBar>& bars = {}) {
    page.Section(table.title);
    if (!bars.empty()) {
      page.Add(bars);
      page.Add(kFloorNote);
    }
    page.Add(table);
  };
  section(SpeedTable(bench));
  for (const GraphTimes& times : bench.times) {
    page.Section("The operators on the roofline");
    page.Add(Draw(RooflineOf(times)), "The operators on the roofline");
    page.Add(
        "Each point is a node; its area is its time. Left of the ridge an operator waits for memory, however "
        "well it computes; right of it, for arithmetic. A point on the line cannot be faster; one above it "
        "took values from a cache, or needs fewer multiplications than the plain sum.");
    section(OperatorTable(times), OperatorBars(times));
    section(NodeTable(times, 100));
  }
  return page.Html(GraphBenchJson(bench));
}

}  // namespace celer::cli
