#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/graph/bench.h"
#include "cli/limits/figures.h"
#include "limits/quantity.h"
#include "report/chart.h"
#include "report/old_page.h"

namespace celer::cli {
namespace {

// Told apart by people with any colour vision (Okabe and Ito).
constexpr const char* kClassColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                        "#b8860b", "#56b4e9", "#5b4b8a"};
constexpr const char* kOther = "#9aa5b1";
constexpr double kRooflineWidth = 900;

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
    out[order[i].second] = i < std::size(kClassColors) ? kClassColors[i] : kOther;
  return out;
}

// One point per node: how many FLOP it does for each byte, and how fast it does them. Its area is its time.
Figure Roofline(const GraphTimes& times, size_t index) {
  const Roof& roof = times.roof;
  std::vector<const NodeTime*> nodes;
  for (const NodeTime& node : times.nodes)
    if (node.work.flops > 0 && node.work.bytes() > 0 && node.seconds > 0) nodes.push_back(&node);
  const double ridge = RidgeIntensity(roof);
  double low = ridge / 10, high = ridge * 10, slowest = roof.flops_per_s / 100, fastest = roof.flops_per_s;
  double longest = 1e-12;
  for (const NodeTime* node : nodes) {
    low = std::min(low, node->intensity()), high = std::max(high, node->intensity());
    slowest = std::min(slowest, node->work.flops / node->seconds);
    fastest = std::max(fastest, node->work.flops / node->seconds);
    longest = std::max(longest, node->seconds);
  }
  Figure figure;
  figure.title =
      fmt::format("The operators on the roofline, {} thread{}", times.threads, times.threads == 1 ? "" : "s");
  figure.caption =
      "Each point is a node; its area is its time. Left of the ridge an operator waits for memory, however "
      "well it computes; right of it, for arithmetic. A point on the line cannot be faster; one above it "
      "took "
      "values from a cache, or needs fewer multiplications than the plain sum.";
  figure.width = kRooflineWidth, figure.height = 560;
  Chart chart(fmt::format("roofline{}", index), 80, 40, kRooflineWidth - 110, 400,
              {.low = low / 2, .high = high * 2, .log = true, .label = "FLOP per byte moved"},
              {.low = slowest / 2, .high = fastest * 3, .log = true, .label = "FLOP/s"}, figure.title);
  chart.VerticalLine(ridge, {"#9aa5b1", 1, "3 4"});
  chart.Curve(
      {{low / 2, AttainableFlops(low / 2, roof)}, {ridge, roof.flops_per_s}, {high * 2, roof.flops_per_s}},
      {kInk, 2.5});
  chart.Label(ridge, slowest / 2, 6, -8, "ridge " + FormatNumber(ridge), Anchor::kStart, kMuted);
  chart.PageText(chart.right(), chart.top() - 10,
                 fmt::format("{}, {}", FormatFlops(roof.flops_per_s), FormatBandwidth(roof.bytes_per_s)),
                 Anchor::kEnd, kMuted);
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const NodeTime* a, const NodeTime* b) { return a->seconds > b->seconds; });
  const auto colors = ColorsOf(times);
  for (const NodeTime* node : nodes)  // the small ones on top
    chart.Mark(node->intensity(), node->work.flops / node->seconds, Marker::kDot, colors.at(Kind(*node)),
               3 + 11 * std::sqrt(node->seconds / longest));
  for (size_t i = 0; i < nodes.size() && i < 6; ++i)
    chart.PointLabel(nodes[i]->intensity(), nodes[i]->work.flops / nodes[i]->seconds,
                     fmt::format("{} {}", nodes[i]->op, nodes[i]->shape),
                     i % 2 == 0 ? Chart::Side::kBelow : Chart::Side::kAbove, kInk);
  // Legend, four to a line.
  int at = 0;
  for (const auto& [op, color] : colors) {
    if (color == kOther) continue;
    const double x = 90 + (at % 4) * 200, y = 500 + (at / 4) * 20;
    chart.PageMark(x, y - 4, Marker::kDot, color, 5);
    chart.PageText(x + 12, y, op, Anchor::kStart, kInk, 12);
    ++at;
  }
  figure.body = chart.Finish();
  return figure;
}

std::string Bars(const GraphTimes& times) {
  const std::vector<OperatorTime> groups = ByOperator(times);
  double sum = 0;
  for (const OperatorTime& group : groups) sum += group.seconds;
  const double longest = groups.empty() ? 1 : std::max(groups[0].seconds, 1e-12);
  std::string out = "<div class=\"bars\">\n";
  for (const OperatorTime& group : groups)
    out += fmt::format(
        "<div>{}</div><div class=\"track open\"><i class=\"over\" style=\"width:{:.2f}%\"></i><i "
        "class=\"floor\" style=\"width:{:.2f}%\"></i></div><div>{}, {:.1f} %</div>\n",
        XmlEscape(group.op + (group.kernel == "reference" ? "" : ", " + group.kernel)),
        100 * group.seconds / longest, 100 * std::min(group.limit, group.seconds) / longest,
        FormatSeconds(group.seconds), sum > 0 ? 100 * group.seconds / sum : 0);
  return out +
         "</div>\n<p>The first part of a bar is the least the operators could take, the second what they "
         "took "
         "beyond that.</p>\n";
}

}  // namespace

std::string GraphBenchHtml(const GraphBench& bench) {
  const auto section = [](const Table& table) {
    std::string out = fmt::format("<section><h2>{}</h2>\n{}", XmlEscape(table.title), TableHtml(table));
    return out + "</section>\n";
  };
  std::string body = section(SpeedTable(bench));
  for (size_t i = 0; i < bench.times.size(); ++i) {
    const GraphTimes& times = bench.times[i];
    const Figure figure = Roofline(times, i);
    body += "<section>" + FigureSvg(figure) + "<p>" + XmlEscape(figure.caption) + "</p></section>\n";
    const Table operators = OperatorTable(times);
    body += fmt::format("<section><h2>{}</h2>\n{}{}</section>\n", XmlEscape(operators.title), Bars(times),
                        TableHtml(operators));
    body += section(NodeTable(times, 100));
  }
  return BenchPage("Speed of " + bench.path, fmt::format("How near the limit {} runs", bench.path),
                   GraphBenchFacts(bench), body);
}

}  // namespace celer::cli
