#include "cli/bench/ladder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/device.h"
#include "cli/bench/report.h"
#include "cli/shared/engine_flags.h"
#include "limits/quantity.h"
#include "report/page.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr LadderStep kLadder[] = {
    {"kernels launched one by one, the host waits for each token", {WeightFormat::kBf16}, StepLaunch::kEager},
    {"one captured graph, the next step queued ahead", {WeightFormat::kBf16}, StepLaunch::kGraph},
    {"all layers in one kernel", {WeightFormat::kBf16}, StepLaunch::kFused},
    {"int8 weights, a scale per channel", {WeightFormat::kInt8}, StepLaunch::kFused},
    {"int4 weights, a scale per 128", {WeightFormat::kInt4, 128}, StepLaunch::kFused},
};
constexpr int64_t kPrompt = 8, kTokens = 128;  // as gpt-fast is measured

double RungSpeed(const LadderRung& rung) {
  return static_cast<double>(rung.result.tokens()) / rung.result.median();
}
double Limit(const LadderReport& report, const LadderRung& rung) {
  return static_cast<double>(rung.result.tokens()) / LimitOf(rung.result.work, report.machine).seconds();
}

Facts LadderFacts(const LadderReport& r) {
  return {{"model", fmt::format("{} with random weights; KV in f16", r.model)},
          {"machine", fmt::format("{}: {}, {} read ({})", r.device, r.machine.name,
                                  FormatBandwidth(r.machine.read_bytes_per_s), r.machine.source)},
          {"run",
           fmt::format("one sequence, {} tokens after {}, median of {} repetition{} after one to warm up",
                       r.plan.tokens, r.plan.depths.front(), r.plan.repeat, r.plan.repeat == 1 ? "" : "s")}};
}

}  // namespace

std::span<const LadderStep> LadderSteps() {
  return kLadder;
}

Result<LadderReport> MeasureLadder(const std::string& preset, const DeviceOptions& device, int64_t repeat,
                                   const Bench::Progress& progress) {
  CELER_ASSIGN([[maybe_unused]] const LlmShape shape, FindModelPreset(preset));
  const bool cpu = device.kind == DeviceOptions::Kind::kCpu;
  if (CudaDeviceCount() == 0 || cpu)
    return Error::Unsupported("--ladder measures a GPU, and ",
                              cpu ? "--device is cpu" : "no CUDA device can be used here",
                              "; celer limits --model ", preset, " shows what to expect of one");
  LadderReport report{.model = preset, .device = {}, .machine = {}, .plan = {}, .rungs = {}};
  report.plan = {.prompts = {}, .depths = {kPrompt}, .batches = {1}, .tokens = kTokens, .repeat = repeat};
  for (const LadderStep& step : kLadder) {
    EngineOptions options{
        .model = "random:" + preset, .weights = step.weights, .device = device, .launch = step.launch};
    options.context = report.plan.positions();
    options.sequences = 1;
    const auto named = [&](const std::string& text) { progress(fmt::format("{}: {}", step.name, text)); };
    CELER_ASSIGN(Bench bench, Bench::Load(options, report.plan, named));
    if (report.rungs.empty()) {
      report.device = bench.engine().info().device;
      progress("measuring this machine (once)");
      CELER_ASSIGN(report.machine, MachineOf(bench.engine().info(), /*allow_measure=*/true));
    }
    CELER_ASSIGN(std::vector<BenchResult> results, bench.Run());
    report.rungs.push_back({step, bench.engine().info().weight_bytes, std::move(results.front())});
  }
  return report;
}

Table LadderTable(const LadderReport& report) {
  Table table;
  table.title = "Decode, step by step";
  table.header = {"step", "tok/s", "min..max", "x the first", "weights", "limit tok/s", "ratio"};
  for (const LadderRung& rung : report.rungs) {
    const double speed = RungSpeed(rung), limit = Limit(report, rung);
    const auto tokens = static_cast<double>(rung.result.tokens());
    table.rows.push_back(
        {rung.step.name, fmt::format("{:.1f}", speed),
         fmt::format("{:.1f}..{:.1f}", tokens / rung.result.slowest(), tokens / rung.result.fastest()),
         fmt::format("{:.2f}", speed / RungSpeed(report.rungs.front())),
         FormatBytes(static_cast<double>(rung.weight_bytes)), fmt::format("{:.1f}", limit),
         fmt::format("{:.2f}", speed / limit)});
  }
  table.notes = {
      "Each step keeps what those above it brought. The limit is weights and KV read once at the measured "
      "bandwidth."};
  return table;
}

std::string LadderText(const LadderReport& report) {
  return FactsText(LadderFacts(report)) + TableText(LadderTable(report));
}

Json LadderJson(const LadderReport& r) {
  Json json;
  json["model"] = r.model;
  json["device"] = r.device;
  json["machine"] = {{"name", r.machine.name},
                     {"source", r.machine.source},
                     {"read_bytes_per_s", r.machine.read_bytes_per_s}};
  json["settings"] = {
      {"prompt", r.plan.depths.front()}, {"tokens", r.plan.tokens}, {"repeat", r.plan.repeat}};
  json["steps"] = Json::array();
  for (const LadderRung& rung : r.rungs)
    json["steps"].push_back({{"name", rung.step.name},
                             {"weights", rung.step.weights.ToString()},
                             {"launch", Name(rung.step.launch)},
                             {"seconds", rung.result.seconds},
                             {"tokens_per_s", RungSpeed(rung)},
                             {"weight_bytes", rung.weight_bytes},
                             {"bytes", rung.result.work.bytes},
                             {"limit_tokens_per_s", Limit(r, rung)},
                             {"ratio", RungSpeed(rung) / Limit(r, rung)}});
  return json;
}

std::string LadderHtml(const LadderReport& report) {
  double longest = 0;
  for (const LadderRung& rung : report.rungs) longest = std::max(longest, Limit(report, rung));
  std::vector<PageBar> bars;
  for (const LadderRung& rung : report.rungs) {
    const double limit = Limit(report, rung), speed = RungSpeed(rung);
    const auto tokens = static_cast<double>(rung.result.tokens());
    bars.push_back(
        {.name = rung.step.name,
         .text = fmt::format("{:.0f} tok/s, {:.0f} % of {:.0f}", speed, 100 * speed / limit, limit),
         .track = limit / longest,
         .bar = speed / limit,
         .low = tokens / rung.result.slowest() / limit,
         .high = tokens / rung.result.fastest() / limit});
  }
  Page page("Ladder of " + report.model, fmt::format("{}, step by step", report.model), LadderFacts(report));
  const Table table = LadderTable(report);
  page.Section(table.title);
  page.Add(bars);
  page.Add(
      "A track is the step's own limit, its bar the median, the mark the spread from the slowest to the "
      "fastest "
      "repetition.");
  page.Add(table);
  return page.Html(LadderJson(report));
}

}  // namespace celer::cli
