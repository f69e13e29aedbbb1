#include "cli/bench/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "limits/peer_speeds.h"
#include "limits/quantity.h"
#include "limits/roofline.h"
#include "loadtest/charts.h"

namespace celer::cli {
namespace {

using Speeds = std::map<double, double>;  // tokens per second by the number of sequences

// Of other engines, within the batch sizes that were measured here.
std::vector<ChartLine> PeerLines(const BenchReport& report, int64_t depth, double least, double most) {
  // Told apart by people with any colour vision (Okabe and Ito).
  constexpr const char* kColours[] = {"#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
  const PeerSpeeds& peers = PeerSpeeds::BuiltIn();
  const std::vector<PeerRow> rows =
      peers.Find(report.info.device, report.info.shape, report.info.bytes_by_format);
  std::vector<ChartLine> lines;
  for (const auto& [key, name] : peers.engines) {
    Speeds speeds;
    for (const PeerRow& row : rows) {
      const auto batch = static_cast<double>(row.batch);
      const auto speed = row.tokens_per_s.find(key);
      if (!row.prefill && row.prompt == depth && speed != row.tokens_per_s.end() && batch >= least &&
          batch <= most)
        speeds[batch] = speed->second;
    }
    if (speeds.empty()) continue;
    lines.push_back({.name = name,
                     .points = {speeds.begin(), speeds.end()},
                     .stroke = {kColours[lines.size() % std::size(kColours)], 1.5, "6 4"},
                     .dots = true});
  }
  return lines;
}

std::string ChartAt(const BenchReport& report, int64_t depth) {
  Speeds celer, limit;
  for (const BenchResult& r : report.results) {
    if (r.prefill || r.length != depth) continue;
    const auto batch = static_cast<double>(r.batch), tokens = static_cast<double>(r.tokens());
    celer[batch] = tokens / r.median();
    limit[batch] = tokens / LimitOf(r.work, report.machine).seconds();
  }
  if (celer.size() < 2) return "";
  const double least = celer.begin()->first, most = celer.rbegin()->first;
  const std::vector<ChartLine> peers = PeerLines(report, depth, least, most);
  std::vector<ChartLine> lines = {
      {.name = "limit", .points = {limit.begin(), limit.end()}, .stroke = {"#52606d", 1.5, "2 3"}},
      {.name = "celer", .points = {celer.begin(), celer.end()}, .stroke = {kFirstColour, 2.5}, .dots = true}};
  lines.insert(lines.end(), peers.begin(), peers.end());
  double low = 1e300;
  for (const ChartLine& line : lines)
    for (const auto& [x, y] : line.points) low = std::min(low, y);
  const std::string title = fmt::format("Decode at {}", FormatCount(depth));
  std::string out = LineChart(
      fmt::format("batches{}", depth), title,
      {.low = 0.9 * least, .high = 1.1 * most, .log = true, .label = "sequences that run together"},
      {.low = 0.8 * low, .high = 1.25 * HighestOf(lines), .log = true, .label = "tok/s"}, lines, 420);
  if (!peers.empty())
    out += fmt::format(
        "<p>The other engines by {}: their kernels' times, as measured on an {}, added up. Weights of 8 bits "
        "stand beside their fp8.</p>\n",
        XmlEscape(PeerSpeeds::BuiltIn().source), XmlEscape(PeerSpeeds::BuiltIn().gpu));
  return out;
}

}  // namespace

std::string BatchCharts(const BenchReport& report) {
  std::set<int64_t> depths;
  for (const BenchResult& r : report.results)
    if (!r.prefill) depths.insert(r.length);
  std::string out;
  for (const int64_t depth : depths)
    if (const std::string chart = ChartAt(report, depth); !chart.empty())
      out += fmt::format("<section><h2>Throughput over batch size, {} tokens before</h2>\n{}</section>\n",
                         FormatCount(depth), chart);
  return out;
}

}  // namespace celer::cli
