#include "loadtest/load_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "limits/quantity.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string TargetText(const ServeTarget& target) {
  std::string text;
  if (target.ttft > 0) text += "first token within " + FormatSeconds(target.ttft);
  if (target.gap > 0) text += (text.empty() ? "" : ", ") + FormatSeconds(target.gap) + " a token on average";
  return text;
}

Json PercentilesJson(const Percentiles& p) {
  return {{"mean", p.mean}, {"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"max", p.max}};
}

Points ShareWithin(std::vector<double> seconds) {
  constexpr size_t kMostPoints = 400;
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

double PerSecond(int64_t count, const ServeMetrics& metrics) {
  return metrics.seconds > 0 ? static_cast<double>(count) / metrics.seconds : 0;
}

std::string Plural(int64_t count, const char* singular) {
  return fmt::format("{} {}{}", FormatCount(count), singular, count == 1 ? "" : "s");
}

std::string TraceText(const Trace& trace, const TraceScale& scale) {
  int64_t prompt = 0, output = 0;
  for (const TraceRequest& request : trace.requests) {
    prompt += request.prompt;
    output += request.output;
  }
  const auto count = static_cast<double>(trace.requests.size());
  std::string text = fmt::format("{}: {}", trace.name, Plural(std::ssize(trace.requests), "request"));
  if (trace.seconds() > 0) text += " over " + FormatSeconds(trace.seconds());
  text += fmt::format(", prompts of {} tokens and answers of {} on average",
                      FormatNumber(static_cast<double>(prompt) / count),
                      FormatNumber(static_cast<double>(output) / count));
  if (scale.rate != 1) text += fmt::format("; rate × {:g}", scale.rate);
  if (scale.length != 1) text += fmt::format("; lengths × {:g}", scale.length);
  return text;
}

Json TraceJson(const Trace& trace, const TraceScale& scale) {
  return {{"name", trace.name},
          {"requests", trace.requests.size()},
          {"seconds", trace.seconds()},
          {"rate_scale", scale.rate},
          {"length_scale", scale.length}};
}

void AddLoadFacts(const Replay& replay, const ServeMetrics& m, const ServeTarget& target,
                  const std::string& more, Facts* facts) {
  std::string requests = fmt::format("{} done in {}: {}/s", FormatCount(m.done), FormatSeconds(m.seconds),
                                     FormatNumber(PerSecond(m.done, m)));
  if (m.failed > 0) {
    const auto failed = std::find_if(replay.requests.begin(), replay.requests.end(),
                                     [](const ReplayedRequest& request) { return !request.done; });
    requests += fmt::format("; {} not done, the first: {}", FormatCount(m.failed), failed->error);
  }
  facts->emplace_back("requests", requests);
  facts->emplace_back("tokens",
                      fmt::format("{} tok/s of answers, {} tok/s with the prompts; {}",
                                  FormatNumber(PerSecond(m.output_tokens, m)),
                                  FormatNumber(PerSecond(m.prompt_tokens + m.output_tokens, m)), more));
  if (target.asked())
    facts->emplace_back("goodput",
                        fmt::format("{}/s, {} of the requests: {}", FormatNumber(PerSecond(m.good, m)),
                                    Percent(Share(m.good, m.done + m.failed)), TargetText(target)));
}

Table LatencyTable(const std::string& title, const ServeMetrics& m, const std::string& note) {
  Table table;
  table.title = title;
  table.header = {"", "mean", "p50", "p90", "p99", "max"};
  const auto row = [&](const char* name, const Percentiles& p) {
    table.rows.push_back({name, FormatSeconds(p.mean), FormatSeconds(p.p50), FormatSeconds(p.p90),
                          FormatSeconds(p.p99), FormatSeconds(p.max)});
  };
  row("first token (TTFT)", m.ttft);
  row("from token to token", m.gap);
  row("the same, mean of an answer (TPOT)", m.token_gap);
  row("whole answer", m.end_to_end);
  table.notes = {note};
  return table;
}

Json LoadJson(const Replay& replay, const ServeMetrics& m, const ServeTarget& target) {
  Json json = {{"requests", m.done + m.failed},
               {"done", m.done},
               {"failed", m.failed},
               {"seconds", m.seconds},
               {"ttft_s", PercentilesJson(m.ttft)},
               {"inter_token_s", PercentilesJson(m.gap)},
               {"per_output_token_s", PercentilesJson(m.token_gap)},
               {"end_to_end_s", PercentilesJson(m.end_to_end)},
               {"requests_per_s", PerSecond(m.done, m)},
               {"prompt_tokens", m.prompt_tokens},
               {"cached_tokens", m.cached_tokens},
               {"output_tokens", m.output_tokens},
               {"output_tokens_per_s", PerSecond(m.output_tokens, m)},
               {"tokens_per_s", PerSecond(m.prompt_tokens + m.output_tokens, m)},
               {"hit_rate", m.hit_rate()},
               {"text", fmt::format("{:016x}", replay.text)}};
  if (target.asked())
    json["goodput"] = {{"requests", m.good},
                       {"requests_per_s", PerSecond(m.good, m)},
                       {"share", Share(m.good, m.done + m.failed)}};
  return json;
}

Chart ServedWithin(const Replay& replay) {
  std::vector<double> ttft, whole;
  for (const ReplayedRequest& request : replay.requests)
    if (request.done) {
      ttft.push_back(request.ttft());
      whole.push_back(request.end_to_end());
    }
  Chart chart{.title = "Served within",
              .x = {.low = 1e300, .high = 0, .log = true, .label = "milliseconds"},
              .y = {.low = 0, .high = 105, .label = "percent"},
              .lines = {{"first token", ShareWithin(ttft), {kLineColors[0], 2}},
                        {"token to token", ShareWithin(replay.gaps), {kLineColors[1], 2, "6 4"}},
                        {"whole answer", ShareWithin(whole), {kLineColors[2], 2, "2 3"}}}};
  for (const ChartLine& line : chart.lines)
    for (const auto& [x, y] : line.points) {
      chart.x.low = std::min(chart.x.low, 0.9 * x);
      chart.x.high = std::max(chart.x.high, 1.1 * x);
    }
  return chart;
}

Chart ChartOverTime(const std::string& title, const std::string& unit, double end_s,
                    std::vector<ChartLine> lines) {
  const double high = 1.1 * std::max(1.0, HighestOf(lines));
  return {.title = title,
          .x = {.low = 0, .high = std::max(end_s, 1e-9), .label = "seconds"},
          .y = {.low = 0, .high = high, .label = unit},
          .lines = std::move(lines)};
}

std::string LoadText(const LoadReport& report) {
  std::string out = FactsText(report.facts) + TableText(report.latency);
  for (const Table& table : report.more) out += TableText(table);
  return out;
}

std::string LoadHtml(const LoadReport& report) {
  Page page(report.title, report.heading, report.facts);
  page.Section(report.latency.title);
  page.Add(report.latency);
  if (HighestOf(report.served.lines) > 0) page.Add(Draw(report.served), report.served.title);
  page.Section("Over time");
  if (report.over_time.empty()) page.Add(std::string("Nothing was served."));
  for (const Chart& chart : report.over_time) page.Add(Draw(chart), chart.title);
  for (const Table& table : report.more) {
    page.Section(table.title);
    page.Add(table);
  }
  return page.Html(report.json);
}

}  // namespace celer::cli
