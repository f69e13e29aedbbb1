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

}  // namespace

double RatioToLeast(const ServeRun& run) {
  return run.metrics.busy_s > 0 ? run.least.limit.seconds() / run.metrics.busy_s : 0;
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

Table LatencyTable(const ServeReport& report) {
  return LatencyTable(
      report.simulated ? "Latency, simulated" : "Latency", report.run.metrics,
      "From the time a request arrives by the trace, whether the engine was ready for it or not.");
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

std::string ServeText(const ServeReport& report) {
  std::string out;
  for (const auto& [name, value] : ServeFacts(report)) out += FactLine(name, value, OutputWidth());
  out += TableText(LatencyTable(report));
  if (report.comparison) out += TableText(ComparisonTable(report));
  return out;
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

Json ServeJson(const ServeReport& r) {
  Json json;
  json["model"] = {{"name", r.model},
                   {"parameters", CountParams(r.info.shape).total},
                   {"weight_bytes", r.info.weight_bytes},
                   {"kv_bytes_per_token", r.info.kv_bytes_per_token}};
  json["trace"] = {{"name", r.trace.name},
                   {"requests", r.trace.requests.size()},
                   {"seconds", r.trace.seconds()},
                   {"rate_scale", r.scale.rate},
                   {"length_scale", r.scale.length},
                   {"hit_bound", r.hit_bound},
                   {"hit_bound_here", r.hit_bound_here}};
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
      const SliceShape& first = c.steps[i].slices.front();
      json["comparison"]["steps"].push_back({{"sequences", c.steps[i].slices.size()},
                                             {"tokens", first.tokens},
                                             {"position", first.position},
                                             {"seconds", c.steps[i].seconds},
                                             {"error", c.step_errors[i]}});
    }
  }
  Json timeline = {{"at_s", Json::array()},
                   {"tokens_per_step", Json::array()},
                   {"kv_share", Json::array()},
                   {"running", Json::array()},
                   {"waiting", Json::array()}};
  for (const TimelinePart& part : Timeline(r.run.replay, kTimelineParts)) {
    timeline["at_s"].push_back(part.at_s);
    timeline["tokens_per_step"].push_back(part.tokens_per_step);
    timeline["kv_share"].push_back(part.kv_share);
    timeline["running"].push_back(part.running);
    timeline["waiting"].push_back(part.waiting);
  }
  json["timeline"] = std::move(timeline);
  return json;
}

}  // namespace celer::cli
