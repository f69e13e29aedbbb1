#include <fmt/format.h>

#include <algorithm>

#include "cli/bench/batches.h"
#include "cli/bench/report.h"
#include "limits/quantity.h"
#include "report/page.h"

namespace celer::cli {
namespace {

std::vector<PageBar> SpeedBars(const BenchReport& report) {
  std::vector<PageBar> bars;
  for (const BenchResult& r : report.results) {
    const double limit = LimitOf(r.work, report.machine).seconds();
    const auto tokens = static_cast<double>(r.tokens());
    bars.push_back({.name = r.Title() + (r.batch > 1 ? fmt::format(" × {}", r.batch) : ""),
                    .text = fmt::format("{} of {} tok/s, {:.0f} %", FormatNumber(tokens / r.median()),
                                        FormatNumber(tokens / limit), 100 * limit / r.median()),
                    .track = 1,
                    .bar = limit / r.median(),
                    .low = limit / r.slowest(),
                    .high = limit / r.fastest()});
  }
  return bars;
}

std::vector<PageBar> OpBars(const BenchReport& report, const BenchResult& r) {
  std::vector<PageBar> bars;
  double longest = 1e-12, rest = r.mean();
  for (const BenchOp& op : r.ops) longest = std::max(longest, op.seconds), rest -= op.seconds;
  longest = std::max(longest, rest);
  const auto add = [&](const std::string& name, double seconds, double limit) {
    bars.push_back({.name = name,
                    .text = fmt::format("{}, {:.1f} %", FormatSeconds(seconds / static_cast<double>(r.steps)),
                                        100 * seconds / r.mean()),
                    .bar = seconds / longest,
                    .floor = std::min(limit, seconds) / longest});
  };
  for (const BenchOp& op : r.ops) add(op.work.name, op.seconds, LimitOf(op.work, report.machine).seconds());
  add(RestName(report), rest, 0);
  return bars;
}

}  // namespace

std::string BenchHtml(const BenchReport& report) {
  Page page("Speed of " + report.model, fmt::format("How near the limit {} runs", report.model),
            BenchFacts(report));
  const Table speed = BenchTable(report);
  page.Section(speed.title);
  page.Add(SpeedBars(report));
  page.Add(
      "The track is the limit, the bar the median, the mark the spread from the slowest to the fastest "
      "repetition.");
  page.Add(speed);
  AddBatchCharts(report, &page);
  if (report.plan.ops)
    for (const BenchResult& result : report.results) {
      const Table ops = OpsTable(report, result);
      page.Section(ops.title);
      page.Add(OpBars(report, result));
      page.Add(kFloorNote);
      page.Add(ops);
    }
  return page.Html(BenchJson(report));
}

}  // namespace celer::cli
