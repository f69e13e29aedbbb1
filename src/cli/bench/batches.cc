#include "cli/bench/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "limits/peer_speeds.h"
#include "limits/quantity.h"
#include "limits/roofline.h"

namespace celer::cli {
namespace {

using Speeds = std::map<double, double>;  // tokens per second by the number of sequences

// Of other engines, within the batch sizes that were measured here.
std::vector<ChartLine> PeerLines(const BenchReport& report, int64_t depth, double least, double most) {
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
                     .stroke = {kLineColors[2 + lines.size() % 4], 1.5, "6 4"},
                     .dots = true});
  }
  return lines;
}

}  // namespace

void AddBatchCharts(const BenchReport& report, Page* page) {
  std::map<int64_t, std::pair<Speeds, Speeds>> depths;  // celer, and the limit
  for (const BenchResult& r : report.results) {
    if (r.prefill) continue;
    const auto batch = static_cast<double>(r.batch), tokens = static_cast<double>(r.tokens());
    depths[r.length].first[batch] = tokens / r.median();
    depths[r.length].second[batch] = tokens / LimitOf(r.work, report.machine).seconds();
  }
  for (const auto& [depth, speeds] : depths) {
    const auto& [celer, limit] = speeds;
    if (celer.size() < 2) continue;
    const double least = celer.begin()->first, most = celer.rbegin()->first;
    const std::vector<ChartLine> peers = PeerLines(report, depth, least, most);
    Chart chart{
        .title = fmt::format("Decode at {}", FormatCount(depth)),
        .x = {.low = 0.9 * least, .high = 1.1 * most, .log = true, .label = "sequences that run together"},
        .y = {.log = true, .label = "tok/s"},
        .lines = {{.name = "limit", .points = {limit.begin(), limit.end()}, .stroke = {kMuted, 1.5, "2 3"}},
                  {.name = "celer",
                   .points = {celer.begin(), celer.end()},
                   .stroke = {kLineColors[0], 2.5},
                   .dots = true}},
        .height = 420};
    chart.lines.insert(chart.lines.end(), peers.begin(), peers.end());
    double low = 1e300;
    for (const ChartLine& line : chart.lines)
      for (const auto& [x, y] : line.points) low = std::min(low, y);
    chart.y.low = 0.8 * low, chart.y.high = 1.25 * HighestOf(chart.lines);
    page->Section(fmt::format("Throughput over batch size, {} tokens before", FormatCount(depth)));
    page->Add(Draw(chart), chart.title);
    if (!peers.empty())
      page->Add(fmt::format(
          "The other engines by {}: their kernels' times, as measured on an {}, added up. Weights of 8 bits "
          "stand beside their fp8.",
          PeerSpeeds::BuiltIn().source, PeerSpeeds::BuiltIn().gpu));
  }
}

}  // namespace celer::cli
