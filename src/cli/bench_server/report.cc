// What `celer bench --server` says.
#include <fmt/format.h>

#include <algorithm>

#include "cli/bench_server/bench_server.h"
#include "limits/quantity.h"
#include "report/output.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRunParts = 200;  // of the run over time
constexpr const char* kNote =
    "Seen by the client, from the time a request arrives by the trace or, in a closed loop, is sent. A gap "
    "is "
    "from one piece of an answer to the next.";

struct LoadPart {
  double at_s = 0;  // its middle
  double pieces_per_s = 0;
  double open = 0;  // requests, on average
};

std::vector<LoadPart> Timeline(const ServerReport& report) {
  const double end = report.metrics.seconds;
  if (end <= 0) return {};
  std::vector<LoadPart> parts(kRunParts);
  const double width = end / kRunParts;
  for (int i = 0; i < kRunParts; ++i) parts[i].at_s = (i + 0.5) * width;
  const auto part_at = [&](double seconds) {
    return static_cast<size_t>(std::clamp(static_cast<int>(seconds / width), 0, kRunParts - 1));
  };
  for (const double at : report.run.token_s) parts[part_at(at)].pieces_per_s += 1 / width;
  for (const ReplayedRequest& r : report.run.replay.requests)
    if (r.done)
      for (size_t i = part_at(r.arrival_s); i <= part_at(r.last_s); ++i) {
        const double begin = static_cast<double>(i) * width;
        parts[i].open +=
            std::max(0.0, std::min(begin + width, r.last_s) - std::max(begin, r.arrival_s)) / width;
      }
  return parts;
}

std::string LoadText(const ServerReport& r) {
  std::string text = TraceText(r.trace, r.scale);
  if (r.shape.closed)
    text += fmt::format("; {} at once, the next when one ends", FormatCount(r.shape.concurrency));
  else if (r.shape.concurrency > 0)
    text += fmt::format("; at most {} at once", FormatCount(r.shape.concurrency));
  return text;
}

std::string PromptText(const ServerReport& r) {
  if (r.maker.token_ids > 0) return fmt::format("token ids below {}", FormatCount(r.maker.token_ids));
  return fmt::format("words, {:.2f} tokens each and {:.0f} around them by the server's count",
                     1 / r.maker.words_per_token, r.maker.tokens_before);
}

Facts ServerFacts(const ServerReport& r) {
  const ServeMetrics& m = r.metrics;
  Facts facts = {{"server", fmt::format("{}{}", r.url, r.maker.path())},
                 {"model", r.model},
                 {"load", LoadText(r)},
                 {"prompts", PromptText(r)}};
  std::string counted = r.run.reported == m.done + m.failed
                            ? "counted by the server"
                            : fmt::format("counted by the server for {}, else one for each piece",
                                          Plural(r.run.reported, "answer"));
  AddLoadFacts(r.run.replay, m, r.target, counted, &facts);
  for (const auto& [kind, error] : r.run.errors)
    facts.emplace_back("error", fmt::format("{} × {}: {}", FormatCount(error.count), kind, error.first));
  const auto done = static_cast<double>(std::max<int64_t>(1, m.done));
  facts.emplace_back("lengths", fmt::format("prompts of {} tokens and answers of {} on average, {} in pieces",
                                            FormatNumber(static_cast<double>(m.prompt_tokens) / done),
                                            FormatNumber(static_cast<double>(m.output_tokens) / done),
                                            FormatNumber(static_cast<double>(r.run.pieces) / done)));
  facts.emplace_back("hits",
                     fmt::format("{} of the prompt tokens, as the server says", Percent(m.hit_rate())));
  std::string client = fmt::format("{} open at most, {} of CPU time", FormatCount(r.run.most_open),
                                   FormatSeconds(r.run.cpu_s));
  if (!r.shape.closed && r.shape.concurrency == 0)
    client += fmt::format(", requests sent {} late at most", FormatSeconds(r.run.late_s));
  facts.emplace_back("client", client);
  return facts;
}

Json ServerJson(const ServerReport& r, const std::vector<LoadPart>& parts) {
  Json json;
  json["server"] = {{"url", r.url}, {"model", r.model}, {"path", r.maker.path()}};
  json["trace"] = TraceJson(r.trace, r.scale);
  json["settings"] = {{"concurrency", r.shape.concurrency},
                      {"closed", r.shape.closed},
                      {"token_ids", r.maker.token_ids},
                      {"target_ttft_s", r.target.ttft},
                      {"target_inter_token_s", r.target.gap}};
  Json result = LoadJson(r.run.replay, r.metrics, r.target);
  result["pieces"] = r.run.pieces;
  result["counted_by_server"] = r.run.reported;
  result["most_open"] = r.run.most_open;
  result["late_s"] = r.run.late_s;
  result["client_cpu_s"] = r.run.cpu_s;
  result["errors"] = Json::array();
  for (const auto& [kind, error] : r.run.errors)
    result["errors"].push_back({{"kind", kind}, {"count", error.count}, {"first", error.first}});
  json["result"] = std::move(result);
  json["timeline"] = PartsJson<LoadPart>(
      parts,
      {{"at_s", &LoadPart::at_s}, {"pieces_per_s", &LoadPart::pieces_per_s}, {"open", &LoadPart::open}});
  return json;
}

}  // namespace

LoadReport Describe(const ServerReport& report) {
  const std::vector<LoadPart> parts = Timeline(report);
  LoadReport out{.title = "Load on " + report.url,
                 .heading = fmt::format("{} under load", report.url),
                 .facts = ServerFacts(report),
                 .latency = LatencyTable("Latency", report.metrics, kNote),
                 .served = ServedWithin(report.run.replay),
                 .json = ServerJson(report, parts)};
  const auto chart = [&](const char* title, const char* unit, const char* name, double LoadPart::*member) {
    out.over_time.push_back(ChartOverTime(title, unit, report.metrics.seconds,
                                          {{name, PartsLine(parts, member), {kLineColors[0], 1.5}}}));
  };
  if (parts.empty()) return out;
  chart("Pieces of answers", "per second", "pieces", &LoadPart::pieces_per_s);
  chart("Requests that wait for an answer or get one", "requests", "open", &LoadPart::open);
  return out;
}

}  // namespace celer::cli
