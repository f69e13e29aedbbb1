#include <fmt/format.h>

#include <algorithm>

#include "cli/bench/batches.h"
#include "cli/bench/report.h"
#include "limits/quantity.h"
#include "report/chart.h"

namespace celer::cli {
namespace {

std::string SpeedBars(const BenchReport& report) {
  std::string out = "<div class=\"bars\">\n";
  for (const BenchResult& r : report.results) {
    const double limit = LimitOf(r.work, report.machine).seconds();
    const auto tokens = static_cast<double>(r.tokens());
    out += SpeedBar(r.Title() + (r.batch > 1 ? fmt::format(" × {}", r.batch) : ""), 1, limit / r.slowest(),
                    limit / r.median(), limit / r.fastest(),
                    fmt::format("{} of {} tok/s, {:.0f} %", FormatNumber(tokens / r.median()),
                                FormatNumber(tokens / limit), 100 * limit / r.median()));
  }
  return out +
         "</div>\n<p>The track is the limit, the bar the median, the mark the spread from the slowest to the "
         "fastest repetition.</p>\n";
}

// Each bar is an operator's time; its first part is the least it could take.
std::string OpBars(const BenchReport& report, const BenchResult& r) {
  double longest = 0, rest = r.mean();
  for (const BenchOp& op : r.ops) {
    longest = std::max(longest, op.seconds);
    rest -= op.seconds;
  }
  longest = std::max({longest, rest, 1e-12});
  const auto steps = static_cast<double>(r.steps);
  std::string out = "<div class=\"bars\">\n";
  const auto bar = [&](const std::string& name, double seconds, double limit) {
    out += fmt::format(
        "<div>{}</div><div class=\"track open\"><i class=\"over\" style=\"width:{:.2f}%\"></i><i "
        "class=\"floor\" style=\"width:{:.2f}%\"></i></div><div>{}, {:.1f} %</div>\n",
        XmlEscape(name), BarLength(seconds / longest), BarLength(std::min(limit, seconds) / longest),
        FormatSeconds(seconds / steps), 100 * seconds / r.mean());
  };
  for (const BenchOp& op : r.ops) bar(op.work.name, op.seconds, LimitOf(op.work, report.machine).seconds());
  bar(RestName(report), rest, 0);
  return out +
         "</div>\n<p>The first part of a bar is the least the operator could take, the second what it took "
         "beyond that.</p>\n";
}

}  // namespace

std::string BenchHtml(const BenchReport& report) {
  const Table speed = BenchTable(report);
  std::string body = fmt::format("<section><h2>{}</h2>\n{}</section>\n<section>{}</section>\n",
                                 XmlEscape(speed.title), SpeedBars(report), TableHtml(speed));
  body += BatchCharts(report);
  if (report.plan.ops)
    for (const BenchResult& result : report.results) {
      const Table ops = OpsTable(report, result);
      body += fmt::format("<section><h2>{}</h2>\n{}{}</section>\n", XmlEscape(ops.title),
                          OpBars(report, result), TableHtml(ops));
    }
  return BenchPage("Speed of " + report.model, fmt::format("How near the limit {} runs", report.model),
                   BenchFacts(report), body);
}

}  // namespace celer::cli
