#include "cli/bench_serve/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/bench/report.h"
#include "limits/quantity.h"
#include "report/output.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTimelineParts = 400;

std::string LimitText(const ServeReport& r) {
  const ServeMetrics& m = r.run.metrics;
  const Against against = Compare(r.run.least.work, m.busy_s, r.machine);
  if (against.bound_by.empty()) return "nothing was computed";
  return fmt::format("{} at least for this work ({}), {} in steps: ratio {:.2f}; busy {} of the time",
                     FormatSeconds(against.limit.seconds()), against.bound_by, FormatSeconds(m.busy_s),
                     against.ratio, Percent(m.seconds > 0 ? m.busy_s / m.seconds : 0));
}

Json RunJson(const ServeRun& run, const ServeTarget& target) {
  const ServeMetrics& m = run.metrics;
  Json json = LoadJson(run.replay, m, target);
  json.update(Json{{"busy_s", m.busy_s},
                   {"cpu_s", run.cpu_s},
                   {"steps", m.steps},
                   {"swaps", m.swaps},
                   {"recomputations", m.recomputations},
                   {"evictions", m.evictions},
                   {"kv_mean", m.kv_mean},
                   {"kv_peak", m.kv_peak},
                   {"limit_s", run.least.limit.seconds()},
                   {"limit_steps", run.least.steps},
                   {"bytes", run.least.work.bytes},
                   {"flops", run.least.work.flops},
                   {"ratio", RatioToLeast(run)}});
  return json;
}

Facts ServeFacts(const ServeReport& r) {
  const ServeMetrics& m = r.run.metrics;
  std::string peaks;
  for (const auto& [dtype, peak] : r.machine.flops) peaks += fmt::format(", {} {}", dtype, FormatFlops(peak));
  Facts facts = {
      {"model", fmt::format("{}: {} parameters, a step reads {}", r.model,
                            FormatParams(static_cast<double>(CountParams(r.info.shape).total)),
                            FormatBytes(static_cast<double>(r.info.weight_bytes)))},
      {"trace", TraceText(r.trace, r.scale)},
      {"machine", fmt::format("{}: {} read{} ({})", r.machine.name,
                              FormatBandwidth(r.machine.read_bytes_per_s), peaks, r.machine.source)},
      {"engine", fmt::format("{}, {} positions, KV of {} tokens ({}), steps of {} tokens", r.info.device,
                             FormatCount(r.info.context), FormatCount(r.info.kv_tokens), Name(r.options.kv),
                             FormatCount(r.options.chunk))}};
  if (r.simulated) facts.emplace_back("simulated", "with " + r.simulated->ToString());

  AddLoadFacts(r.run.replay, m, r.target, Plural(m.steps, "step"), &facts);
  facts.emplace_back(
      "hits",
      fmt::format("{} of the prompt tokens; a cache without limits would have {}, one of this KV's size {}",
                  Percent(m.hit_rate()), Percent(r.hit_bound), Percent(r.hit_bound_here)));
  facts.emplace_back("preempted",
                     fmt::format("{} swapped, {} computed again; {} of cached blocks", FormatCount(m.swaps),
                                 FormatCount(m.recomputations), Plural(m.evictions, "eviction")));
  facts.emplace_back("KV use",
                     fmt::format("{} on average, {} at most", Percent(m.kv_mean), Percent(m.kv_peak)));
  facts.emplace_back("limit", LimitText(r));
  return facts;
}

Table ComparisonTable(const ServeReport& report) {
  const ServeComparison& c = *report.comparison;
  const ServeMetrics &m = report.run.metrics, &s = c.simulated.metrics;
  Table table;
  table.title = "The simulation of this machine against the measurement";
  table.header = {"", "measured", "simulated", "error"};
  const auto row = [&](const std::string& name, double measured, double simulated, auto format) {
    table.rows.push_back({name, format(measured), format(simulated),
                          measured > 0 ? fmt::format("{:+.1f} %", 100 * (simulated / measured - 1)) : "-"});
  };
  const auto seconds = [](double value) { return FormatSeconds(value); };
  const auto number = [](double value) { return FormatNumber(value); };
  const auto latency = [&](const std::string& name, const Percentiles& a, const Percentiles& b) {
    row(name + " p50", a.p50, b.p50, seconds);
    row(name + " p90", a.p90, b.p90, seconds);
    row(name + " p99", a.p99, b.p99, seconds);
  };
  latency("first token", m.ttft, s.ttft);
  latency("token to token", m.gap, s.gap);
  latency("whole answer", m.end_to_end, s.end_to_end);
  row("answers, tok/s", PerSecond(m.output_tokens, m), PerSecond(s.output_tokens, s), number);
  row("time in steps", m.busy_s, s.busy_s, seconds);
  row("steps", static_cast<double>(m.steps), static_cast<double>(s.steps), number);
  table.notes = {
      fmt::format("The model of time was fitted to {} kinds of steps, timed before the replay: off by {} in "
                  "the middle, by {} at most. Use it again with --efficiency {}",
                  c.steps.size(), Percent(Percentile(c.step_errors, 0.5)),
                  Percent(Percentile(c.step_errors, 1)), c.efficiency.ToString())};
  // A model knows nothing of other programs.
  if (report.info.device == "cpu" && m.busy_s > 0 && report.info.threads > 0)
    table.notes.push_back(fmt::format("While it was measured, the engine had {} of the time of {}.",
                                      Percent(report.run.cpu_s / m.busy_s / report.info.threads),
                                      Plural(report.info.threads, "core")));
  return table;
}

// Running and waiting share a chart; a simulation of the others is drawn beside them.
std::vector<Chart> ChartsOf(const ServeReport& report) {
  const std::vector<TimelinePart> parts = Timeline(report.run.replay, kTimelineParts);
  if (parts.empty()) return {};
  std::vector<TimelinePart> simulated;
  if (report.comparison) simulated = Timeline(report.comparison->simulated.replay, kTimelineParts);
  const double end = std::max(parts.back().at_s, simulated.empty() ? 0 : simulated.back().at_s);
  const auto chart = [&](const char* title, const char* unit, const char* name, double TimelinePart::*member,
                         double scale) {
    std::vector<ChartLine> lines = {
        {report.comparison ? "measured" : name, PartsLine(parts, member, scale), {kLineColors[0], 1.5}}};
    if (report.comparison)
      lines.push_back({"simulated", PartsLine(simulated, member, scale), {kLineColors[1], 1.5}});
    return ChartOverTime(title, unit, end, lines);
  };
  std::vector<Chart> charts = {
      chart("Tokens computed in a step", "tokens", "tokens", &TimelinePart::tokens_per_step, 1),
      chart("KV in use", "percent", "KV", &TimelinePart::kv_share, 100),
      ChartOverTime("Sequences", "sequences", end,
                    {{"running", PartsLine(parts, &TimelinePart::running), {kLineColors[0], 1.5}},
                     {"waiting", PartsLine(parts, &TimelinePart::waiting), {kLineColors[1], 1.5}}})};
  charts[1].y.high = std::min(charts[1].y.high, 105.0);
  return charts;
}

Json ServeJson(const ServeReport& r) {
  Json json;
  json["model"] = {{"name", r.model},
                   {"parameters", CountParams(r.info.shape).total},
                   {"weight_bytes", r.info.weight_bytes},
                   {"kv_bytes_per_token", r.info.kv_bytes_per_token}};
  json["trace"] = TraceJson(r.trace, r.scale);
  json["trace"].update(Json{{"hit_bound", r.hit_bound}, {"hit_bound_here", r.hit_bound_here}});
  json["machine"] = {{"name", r.machine.name},
                     {"source", r.machine.source},
                     {"memory_bytes", r.machine.memory_bytes},
                     {"read_bytes_per_s", r.machine.read_bytes_per_s},
                     {"flops", r.machine.flops}};
  json["settings"] = {{"device", r.info.device},
                      {"weights", r.options.weights.ToString()},
                      {"kv", Name(r.options.kv)},
                      {"threads", r.info.threads},
                      {"context", r.info.context},
                      {"kv_tokens", r.info.kv_tokens},
                      {"chunk", r.options.chunk},
                      {"target_ttft_s", r.target.ttft},
                      {"target_inter_token_s", r.target.gap}};
  json["simulated"] = r.simulated ? Json(r.simulated->ToString()) : Json(nullptr);
  json["result"] = RunJson(r.run, r.target);
  if (r.comparison) {
    const ServeComparison& c = *r.comparison;
    json["comparison"] = {{"efficiency", c.efficiency.ToString()},
                          {"simulated", RunJson(c.simulated, r.target)}};
    json["comparison"]["steps"] = Json::array();
    for (size_t i = 0; i < c.steps.size(); ++i) {
      const SliceShape& last = c.steps[i].slices.back();  // the prompt of a mixed step
      json["comparison"]["steps"].push_back({{"sequences", c.steps[i].slices.size()},
                                             {"tokens", last.tokens},
                                             {"position", last.position},
                                             {"seconds", c.steps[i].seconds},
                                             {"error", c.step_errors[i]}});
    }
  }
  json["timeline"] = PartsJson<TimelinePart>(Timeline(r.run.replay, kTimelineParts),
                                             {{"at_s", &TimelinePart::at_s},
                                              {"tokens_per_step", &TimelinePart::tokens_per_step},
                                              {"kv_share", &TimelinePart::kv_share},
                                              {"running", &TimelinePart::running},
                                              {"waiting", &TimelinePart::waiting}});
  return json;
}

}  // namespace

double RatioToLeast(const ServeRun& run) {
  return run.metrics.busy_s > 0 ? run.least.limit.seconds() / run.metrics.busy_s : 0;
}

std::vector<TimelinePart> Timeline(const Replay& replay, int count) {
  if (replay.steps.empty()) return {};
  const double end = replay.steps.back().end_s;
  const auto blocks = static_cast<double>(std::max<int64_t>(1, replay.after.kv_blocks));
  count = std::max(1, static_cast<int>(std::min<int64_t>(count, std::ssize(replay.steps))));
  std::vector<TimelinePart> parts(static_cast<size_t>(count));
  std::vector<int64_t> steps(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) parts[i].at_s = end * (static_cast<double>(i) + 0.5) / count;
  const auto part_at = [&](double seconds) {
    return end > 0 ? std::min(parts.size() - 1, static_cast<size_t>(seconds / end * count)) : 0;
  };
  for (const ReplayedStep& step : replay.steps)
    for (size_t i = part_at(step.begin_s); i <= part_at(step.end_s); ++i) {
      TimelinePart& part = parts[i];
      ++steps[i];
      part.tokens_per_step += static_cast<double>(step.tokens);
      part.kv_share = std::max(part.kv_share, static_cast<double>(step.kv_blocks_used) / blocks);
      part.running = std::max(part.running, static_cast<double>(step.running));
      part.waiting = std::max(part.waiting, static_cast<double>(step.waiting));
    }
  for (size_t i = 0; i < parts.size(); ++i)
    if (steps[i] > 0) parts[i].tokens_per_step /= static_cast<double>(steps[i]);
  return parts;
}

LoadReport Describe(const ServeReport& report) {
  LoadReport out{
      .title = "Serving " + report.model,
      .heading = fmt::format("{} under load{}", report.model, report.simulated ? ", simulated" : ""),
      .facts = ServeFacts(report),
      .latency = LatencyTable(
          report.simulated ? "Latency, simulated" : "Latency", report.run.metrics,
          "From the time a request arrives by the trace, whether the engine was ready for it or not."),
      .served = ServedWithin(report.run.replay),
      .over_time = ChartsOf(report),
      .json = ServeJson(report)};
  if (report.comparison) out.more.push_back(ComparisonTable(report));
  return out;
}

}  // namespace celer::cli
