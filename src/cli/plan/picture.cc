// The charts of `celer plan`, and its page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/plan/report.h"
#include "limits/quantity.h"
#include "report/page.h"

namespace celer::cli {
namespace {

constexpr double kWidth = 700, kHeight = 340;
constexpr size_t kMostLines = std::size(kLineColors);

// Of rows that hold something, the cheapest.
std::vector<const PlanRow*> DrawnRows(const Plan& plan) {
  std::vector<const PlanRow*> rows;
  for (const PlanRow& row : plan.rows)
    if (row.replicas > 0 && row.can_run && rows.size() < kMostLines) rows.push_back(&row);
  return rows;
}

double PriceOf(const PlanQuery& query, const PlanRow& row) {
  const double devices = static_cast<double>(row.choice.devices);
  if (!query.prices) return devices;
  return query.prices->Of(row.machine).value_or(0) * devices;
}

void SpanOf(const std::vector<ChartLine>& lines, Axis* x, Axis* y) {
  double left = 1e300, right = 0, low = 1e300, high = 0;
  for (const ChartLine& line : lines)
    for (const auto& [px, py] : line.points) {
      left = std::min(left, px);
      right = std::max(right, px);
      low = std::min(low, py);
      high = std::max(high, py);
    }
  if (right <= 0) left = low = 1, right = high = 10;
  x->low = left * 0.95, x->high = right * 1.05;
  y->low = low * 0.8, y->high = high * 1.25;
}

Drawing DrawLines(Chart chart, const char* nothing) {
  chart.width = kWidth;
  chart.height = kHeight;
  chart.x.log = chart.y.log = true;
  SpanOf(chart.lines, &chart.x, &chart.y);
  if (chart.lines.empty()) chart.note = nothing;
  return Draw(chart);
}

}  // namespace

Drawing CostDrawing(const PlanQuery& query, const Plan& plan) {
  Chart chart{.title = query.prices
                           ? fmt::format("{} per hour over requests per second", query.prices->currency)
                           : "Devices over requests per second",
              .x = {.label = "requests per second"},
              .y = {.label = query.prices ? query.prices->currency + " per hour" : "devices"}};
  const std::vector<const PlanRow*> rows = DrawnRows(plan);
  for (size_t i = 0; i < rows.size(); ++i) {
    const PlanRow& row = *rows[i];
    const double price = PriceOf(query, row);
    if (price <= 0) continue;
    const double middle = query.load.rate > 0 ? query.load.rate : rows.front()->choice.rate();
    ChartLine line{row.machine, {}, {kLineColors[i], 2}};
    for (int k = 0; k <= 240; ++k) {
      const double load = middle * std::pow(10.0, (k - 120) / 80.0);
      const int64_t replicas = ReplicasFor(load, row.choice.rate());
      if (replicas > 0) line.points.emplace_back(load, price * static_cast<double>(replicas));
    }
    chart.lines.push_back(std::move(line));
    if (query.load.rate > 0 && plan.winner && &row == &plan.rows[*plan.winner])
      chart.marks.push_back({.x = query.load.rate,
                             .y = price * static_cast<double>(row.replicas),
                             .label = fmt::format("{} x {}", row.replicas, row.machine)});
  }
  return DrawLines(std::move(chart), "no machine holds the load");
}

Drawing FrontierDrawing(const PlanQuery& query, const Plan& plan) {
  Chart chart{.title = query.prices ? fmt::format("Tokens of answers for one {}, over how long each takes",
                                                  query.prices->currency)
                                    : "Tokens of answers per second of a device, over how long each takes",
              .x = {.label = "ms per token (TPOT, mean)"},
              .y = {.label = query.prices ? "tokens per " + query.prices->currency : "tokens per second"}};
  const std::vector<const PlanRow*> rows = DrawnRows(plan);
  for (size_t i = 0; i < rows.size(); ++i) {
    const PlanRow& row = *rows[i];
    const double price = PriceOf(query, row);
    if (price <= 0) continue;
    ChartLine line{row.machine, {}, {kLineColors[i], 2}};
    for (int level = 1; level <= kPlanLevels; ++level) {
      const double rate = row.choice.saturation * level / kPlanLevels;
      const SteadyLoad steady = SteadyAt(*row.choice.replica, query.load, row.choice.chunk, rate);
      if (!steady.holds) break;
      const double tokens = rate * static_cast<double>(query.load.output);
      line.points.emplace_back(1e3 * steady.tpot.mean, query.prices ? tokens * 3600 / price : tokens / price);
    }
    if (!line.points.empty()) chart.lines.push_back(std::move(line));
  }
  return DrawLines(std::move(chart), "no machine holds the load");
}

std::string PlanSvg(const PlanQuery& query, const Plan& plan) {
  Drawing both = CostDrawing(query, plan);
  Drawing below = FrontierDrawing(query, plan);
  const double top = both.height + 24;
  both.body += fmt::format("<g transform=\"translate(0 {:.0f})\">{}</g>", top, below.body);
  both.height = top + below.height;
  return DrawingSvg(both, "Plan of " + query.model);
}

std::string PlanHtml(const PlanQuery& query, const Plan& plan) {
  Page page("Plan of " + query.model, "Machines for " + query.model, PlanFacts(query, plan));
  page.Section("Cost");
  page.Add(CostDrawing(query, plan), "Cost over the load");
  page.Add("Each step of a line is one more replica; the lowest line is the cheapest machine for that load.");
  page.Section("Frontier");
  page.Add(FrontierDrawing(query, plan), "What a device gives over how long a token takes");
  page.Add("Further right more requests share a step: more tokens in all, and each of them later.");
  page.Section("Machines");
  page.Add(PlanTable(query, plan));
  if (plan.winner) {
    page.Section("Run it");
    page.Add(ServeCommandLine(query, plan.rows[*plan.winner]));
  }
  return page.Html(PlanJson(query, plan));
}

}  // namespace celer::cli
