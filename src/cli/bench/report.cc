#include "cli/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "limits/quantity.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

double Flops(const OperatorWork& work) {
  double sum = 0;
  for (const auto& [dtype, flops] : work.flops) sum += flops;
  return sum;
}

std::string FormatOperations(double flops) {
  constexpr std::pair<double, const char*> kScales[] = {{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}};
  for (const auto& [scale, prefix] : kScales)
    if (flops >= scale) return fmt::format("{} {}FLOP", FormatNumber(flops / scale), prefix);
  return fmt::format("{} kFLOP", FormatNumber(flops / 1e3));
}

std::string OrDash(bool there, const std::string& text) {
  return there ? text : "-";
}

double OpsSeconds(const BenchResult& result) {
  return std::accumulate(result.ops.begin(), result.ops.end(), 0.0,
                         [](double sum, const BenchOp& op) { return sum + op.seconds; });
}

bool OnGpu(const BenchReport& report) {
  return report.info.device.starts_with("cuda");
}

Json AgainstJson(const Against& against) {
  if (against.bound_by.empty()) return {{"limit_s", 0.0}, {"ratio", nullptr}, {"bound_by", nullptr}};
  return {{"limit_s", against.limit.seconds()}, {"ratio", against.ratio}, {"bound_by", against.bound_by}};
}

Json ResultJson(const BenchReport& report, const BenchResult& r) {
  const double median = r.median();
  const Against against = Compare(r.work, median, report.machine);
  const auto tokens = static_cast<double>(r.tokens());
  Json json = {{"phase", r.prefill ? "prefill" : "decode"}, {r.prefill ? "prompt" : "depth", r.length}};
  json.update({{"batch", r.batch},
               {"steps", r.steps},
               {"tokens", r.tokens()},
               {"seconds", r.seconds},
               {"median_s", median},
               {"min_s", r.fastest()},
               {"max_s", r.slowest()},
               {"tokens_per_s", tokens / median},
               {"bytes", r.work.bytes},
               {"flops", r.work.flops},
               {"memory_s", against.limit.memory_s},
               {"compute_s", against.limit.compute_s}});
  json.update(AgainstJson(against));
  json["limit_tokens_per_s"] = tokens / against.limit.seconds();
  if (!report.plan.ops) return json;

  const double mean = r.mean();
  json["mean_s"] = mean;
  json["ops"] = Json::array();
  for (const BenchOp& op : r.ops) {
    const Against own = Compare(op.work, op.seconds, report.machine);
    Json row = {{"name", op.work.name},       {"calls", op.calls},      {"seconds", op.seconds},
                {"share", op.seconds / mean}, {"bytes", op.work.bytes}, {"flops", op.work.flops}};
    row.update(AgainstJson(own));
    json["ops"].push_back(std::move(row));
  }
  json[OnGpu(report) ? "gaps_s" : "rest_s"] = mean - OpsSeconds(r);
  return json;
}

}  // namespace

Against Compare(const OperatorWork& work, double seconds, const Machine& machine) {
  Against against{.limit = LimitOf(work, machine), .bound_by = {}};
  if (against.limit.seconds() <= 0 || seconds <= 0) return against;
  against.ratio = RatioToLimit(against.limit, seconds);
  against.bound_by = against.limit.memory_bound() ? "memory" : MainArithmetic(work, machine) + " arithmetic";
  return against;
}

const char* RestName(const BenchReport& report) {
  return OnGpu(report) ? "gaps" : "rest";
}

Facts BenchFacts(const BenchReport& r) {
  std::string formats;
  for (const auto& [format, bytes] : r.info.bytes_by_format)
    formats += fmt::format("{}{} {}", formats.empty() ? "" : ", ", format, FormatBytes(double(bytes)));
  std::string peaks;
  for (const auto& [dtype, peak] : r.machine.flops) peaks += fmt::format(", {} {}", dtype, FormatFlops(peak));
  return {
      {"model", fmt::format("{}: {}, {} parameters; {}", r.model, r.info.architecture,
                            FormatParams(double(CountParams(r.info.shape).total)), formats)},
      {"step", fmt::format("reads {} of weights and, for each token before it, {} of KV ({})",
                           FormatBytes(double(r.info.weight_bytes)),
                           FormatBytes(double(r.info.kv_bytes_per_token)), Name(r.options.kv))},
      {"machine", fmt::format("{}: {} read{} ({})", r.machine.name,
                              FormatBandwidth(r.machine.read_bytes_per_s), peaks, r.machine.source)},
      {"run",
       OnGpu(r)
           ? fmt::format("{}, {} launch, {} positions, chunks of {}, {} repetition{} after one to warm up",
                         r.info.device, Name(r.options.launch), FormatCount(r.info.context),
                         FormatCount(r.options.chunk), r.plan.repeat, r.plan.repeat == 1 ? "" : "s")
           : fmt::format("{} thread{}, {} positions, chunks of {}, {} repetition{} after one to warm up",
                         r.info.threads, r.info.threads == 1 ? "" : "s", FormatCount(r.info.context),
                         FormatCount(r.options.chunk), r.plan.repeat, r.plan.repeat == 1 ? "" : "s")},
      {"start", fmt::format("load {}, first token after {} (prompt of {})", FormatSeconds(r.start.load_s),
                            FormatSeconds(r.start.first_token_s), FormatCount(r.start.prompt))},
  };
}

Table BenchTable(const BenchReport& report) {
  Table table;
  table.title = "Speed, all sequences together";
  table.keys = 2;
  table.header = {"work", "batch",      "tok/s",       "min..max", "time",    "read",
                  "GB/s", "arithmetic", "limit tok/s", "ratio",    "bound by"};
  table.last_is_words = true;
  for (const BenchResult& r : report.results) {
    const double median = r.median();
    const auto tokens = static_cast<double>(r.tokens()), steps = static_cast<double>(r.steps);
    const Against against = Compare(r.work, median, report.machine);
    table.rows.push_back({r.Title(), FormatCount(r.batch), FormatNumber(tokens / median),
                          FormatNumber(tokens / r.slowest()) + ".." + FormatNumber(tokens / r.fastest()),
                          FormatSeconds(median / steps), FormatBytes(r.work.bytes / steps),
                          fmt::format("{:.1f}", r.work.bytes / median / 1e9),
                          FormatOperations(Flops(r.work) / steps),
                          FormatNumber(tokens / against.limit.seconds()),
                          fmt::format("{:.2f}", against.ratio), against.bound_by});
  }
  table.notes = {
      "Time, bytes and operations of a decode are those of one step; its depth is what lies in the KV before "
      "the "
      "first one.",
      "Weights and KV are counted once each. The limit is the slower of reading them at the measured "
      "bandwidth and "
      "computing at the measured peak."};
  return table;
}

Table OpsTable(const BenchReport& report, const BenchResult& r) {
  Table table;
  const auto steps = static_cast<double>(r.steps);
  const double step = r.mean() / steps;
  table.title = fmt::format("{}, {} sequence{}: {}{} on average", r.Title(), FormatCount(r.batch),
                            r.batch == 1 ? "" : "s", FormatSeconds(step), r.prefill ? "" : " a step");
  table.header = {"operator", "calls",      "time",  "share", "read",
                  "GB/s",     "arithmetic", "limit", "ratio", "bound by"};
  table.last_is_words = true;
  for (const BenchOp& op : r.ops) {
    const Against against = Compare(op.work, op.seconds, report.machine);
    const bool counted = !against.bound_by.empty();
    table.rows.push_back(
        {op.work.name, fmt::format("{:g}", op.calls / steps), FormatSeconds(op.seconds / steps),
         fmt::format("{:.1f} %", 100 * op.seconds / r.mean()),
         OrDash(op.work.bytes > 0, FormatBytes(op.work.bytes / steps)),
         OrDash(op.work.bytes > 0 && op.seconds > 0,
                fmt::format("{:.1f}", op.work.bytes / std::max(op.seconds, 1e-12) / 1e9)),
         OrDash(Flops(op.work) > 0, FormatOperations(Flops(op.work) / steps)),
         OrDash(counted, FormatSeconds(against.limit.seconds() / steps)),
         OrDash(counted, fmt::format("{:.2f}", against.ratio)), OrDash(counted, against.bound_by)});
  }
  const double rest = r.mean() - OpsSeconds(r);
  table.rows.push_back({RestName(report), "-", FormatSeconds(rest / steps),
                        fmt::format("{:.1f} %", 100 * rest / r.mean()), "-", "-", "-", "-", "-", "-"});
  if (OnGpu(report))
    table.notes = {
        "Each operator's kernels are timed by themselves, between events on the GPU, less the time of two "
        "events "
        "with nothing between them.",
        "Gaps are what the step takes beyond their sum as it really runs: negative where kernels "
        "start "
        "before the ones in front have ended."};
  return table;
}

std::string BenchText(const BenchReport& report) {
  std::string out = FactsText(BenchFacts(report));
  if (!report.results.empty()) out += TableText(BenchTable(report));
  if (report.plan.ops)
    for (const BenchResult& result : report.results) out += TableText(OpsTable(report, result));
  return out;
}

Json BenchJson(const BenchReport& r) {
  Json json;
  json["model"] = {{"name", r.model},
                   {"path", r.options.model},
                   {"architecture", r.info.architecture},
                   {"parameters", CountParams(r.info.shape).total},
                   {"weight_bytes", r.info.weight_bytes},
                   {"kv_bytes_per_token", r.info.kv_bytes_per_token},
                   {"bytes_by_format", r.info.bytes_by_format}};
  json["machine"] = {{"name", r.machine.name},
                     {"source", r.machine.source},
                     {"read_bytes_per_s", r.machine.read_bytes_per_s},
                     {"flops", r.machine.flops}};
  json["settings"] = {{"device", r.info.device},
                      {"launch", Name(r.options.launch)},
                      {"weights", r.options.weights.ToString()},
                      {"kv", Name(r.options.kv)},
                      {"threads", r.info.threads},
                      {"context", r.info.context},
                      {"chunk", r.options.chunk},
                      {"repeat", r.plan.repeat}};
  json["start"] = {
      {"load_s", r.start.load_s}, {"first_token_s", r.start.first_token_s}, {"prompt", r.start.prompt}};
  json["results"] = Json::array();
  for (const BenchResult& result : r.results) json["results"].push_back(ResultJson(r, result));
  return json;
}

}  // namespace celer::cli
