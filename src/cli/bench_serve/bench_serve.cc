#include "cli/bench_serve/bench_serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>

#include "cli/limits/machine.h"
#include "cli/shared/engine_flags.h"
#include "hub/model_path.h"
#include "kernels/llm/kv_block.h"
#include "limits/quantity.h"
#include "loadtest/simulate.h"
#include "models/config/presets.h"
#include "models/load/model.h"

namespace celer::cli {
namespace {

constexpr int64_t kMaxServeTokens = int64_t{1} << 24;
constexpr int64_t kMaxRequests = 10'000'000;

constexpr std::string_view kServeOnly[] = {
    "--serve-trace",  "--serve-poisson", "--prompt-tokens", "--output-tokens", "--rate-scale",
    "--length-scale", "--requests",      "--serve-seed",    "--target-ttft",   "--target-itl",
    "--simulate",     "--compare",       "--efficiency"};

Result<double> PositiveOr(const std::string& text, double if_empty, double max, const char* flag) {
  if (text.empty()) return if_empty;
  return ParsePositive(text, max, flag);
}

Result<int64_t> CountOr(const std::string& text, int64_t if_empty, int64_t max, const char* flag) {
  if (text.empty()) return if_empty;
  return ParseCount(text, max, flag);
}

// Positions for the longest request, if the model has as many. Those that need more are reported as not done.
int64_t ContextFor(const Trace& trace, int64_t asked, int64_t model_positions) {
  if (asked > 0) return asked;
  int64_t longest = 2;
  for (const TraceRequest& request : trace.requests)
    longest = std::max(longest, request.prompt + request.output);
  return std::min(longest, model_positions);
}

struct PlayedOn {
  Engine& engine;
  ReplayClock& clock;
  const StepCost& cost;
};

Result<ServeRun> Play(const PlayedOn& on, const ServeReport& report, const char* what,
                      const std::function<void(const std::string&)>& progress) {
  ServeRun run;
  const auto all = report.trace.requests.size();
  int64_t shown = -1;
  const auto show = [&](int64_t done) {
    if (done == shown) return;
    shown = done;
    progress(fmt::format("{}: {} of {} requests done", what, FormatCount(done),
                         FormatCount(static_cast<int64_t>(all))));
  };
  const std::clock_t start = std::clock();
  CELER_ASSIGN(run.replay, PlayTrace(on.engine, report.trace, on.clock, show));
  run.cpu_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  run.metrics = Summarize(run.replay, report.target);
  run.least = LeastWorkOf(run.replay, on.cost, report.machine, on.engine.info().kv_tokens);
  return run;
}

double HitBound(const Trace& trace, const Replay& replay, int64_t vocab, int64_t kv_blocks) {
  const std::vector<int64_t> shared = SharedTokens(trace, vocab, kKvBlockTokens, kv_blocks);
  int64_t found = 0, prompts = 0;
  for (size_t i = 0; i < shared.size(); ++i)
    if (replay.requests[i].done) {
      found += shared[i];
      prompts += replay.requests[i].prompt;
    }
  return prompts > 0 ? static_cast<double>(found) / static_cast<double>(prompts) : 0;
}

Status Simulate(const ServeFlags& flags, ServeReport* report,
                const std::function<void(const std::string&)>& progress) {
  EngineOptions& options = report->options;
  if (options.device == DeviceOptions::Auto()) options.device = {};  // nothing runs on it
  CELER_ASSIGN(
      report->machine,
      ResolveMachine({.machine = flags.simulate, .memory = {}, .bandwidth = {}, .tflops = {}}, Units::kSi));
  progress("reading the model's sizes");
  CELER_ASSIGN(const CostedModel model, LoadCostedModel(report->model, options));
  options.context = ContextFor(report->trace, options.context, model.config.max_positions);
  if (options.context > model.config.max_positions)
    return Error::Invalid("--context ", options.context, ": the model has ", model.config.max_positions,
                          " positions");
  CELER_ASSIGN(const SimulatedEngine made,
               MakeSimulatedEngine(model, report->machine, flags.efficiency, options));
  report->info = made.engine->info();
  report->simulated = flags.efficiency;
  SimulatedClock clock(*made.runner);
  CELER_ASSIGN(report->run, Play({*made.engine, clock, model.cost}, *report, "simulating", progress));
  return {};
}

Status Measure(const ServeFlags& flags, ServeReport* report,
               const std::function<void(const std::string&)>& progress) {
  EngineOptions& options = report->options;
  constexpr std::string_view kRandom = "random:";
  DecoderConfig config;
  if (report->model.starts_with(kRandom)) {  // a preset's shape with weights made up on the GPU
    options.model = report->model;
    CELER_ASSIGN(config, FindConfigPreset(std::string_view(report->model).substr(kRandom.size())));
  } else {
    CELER_ASSIGN(const std::filesystem::path path, ResolveModelPath(report->model));
    options.model = path.string();
    CELER_ASSIGN(config, LoadDecoderConfig(path));
  }
  // The steps that a model of time is fitted to reach further than short requests.
  if (flags.compare && options.context == 0)
    options.context =
        std::min(config.max_positions,
                 std::max(kMeasuredPositions, ContextFor(report->trace, 0, config.max_positions)));
  options.context = ContextFor(report->trace, options.context, config.max_positions);
  progress("loading");
  CELER_ASSIGN(const std::unique_ptr<Engine> engine, Engine::Load(options));
  report->info = engine->info();
  progress("measuring this machine (once)");
  CELER_ASSIGN(report->machine, MachineOf(engine->info(), /*allow_measure=*/true));
  const StepCost cost(config, [&](const StepShape& shape) { return engine->Work(shape); });

  progress(flags.compare ? "timing steps" : "warming up");
  CELER_RETURN_IF_ERROR(WarmUp(*engine));
  std::vector<MeasuredStep> steps;
  if (flags.compare) {
    CELER_ASSIGN(steps, MeasureSteps(*engine, options));
  }
  RealClock clock;
  CELER_ASSIGN(report->run, Play({*engine, clock, cost}, *report, "serving", progress));
  if (!flags.compare) return {};

  ServeComparison comparison;
  comparison.efficiency = FitEfficiency(cost, report->machine, steps);
  comparison.step_errors = FitErrors(StepTime(cost, report->machine, comparison.efficiency), steps);
  comparison.steps = std::move(steps);
  const SimulatedEngine made =
      SimulateEngine(*engine, config, report->machine, comparison.efficiency, options, comparison.steps);
  SimulatedClock virtual_clock(*made.runner);
  CELER_ASSIGN(comparison.simulated,
               Play({*made.engine, virtual_clock, cost}, *report, "simulating", progress));
  report->comparison = std::move(comparison);
  return {};
}

}  // namespace

Result<Trace> TraceOf(const ServeFlags& flags, TraceScale* scale) {
  if (!flags.trace.empty() && !flags.poisson.empty())
    return Error::Invalid("--serve-trace and --serve-poisson exclude each other; leave one of them out");
  CELER_ASSIGN(scale->rate, PositiveOr(flags.rate_scale, 1, 1e9, "--rate-scale"));
  CELER_ASSIGN(scale->length, PositiveOr(flags.length_scale, 1, 1e3, "--length-scale"));
  CELER_ASSIGN(scale->requests, CountOr(flags.requests, 0, kMaxRequests, "--requests"));
  if (!flags.trace.empty()) {
    for (const auto& [text, flag] :
         {std::pair(&flags.prompt_tokens, "--prompt-tokens"),
          std::pair(&flags.output_tokens, "--output-tokens"), std::pair(&flags.seed, "--serve-seed")})
      if (!text->empty())
        return Error::Invalid(
            flag, " has no effect with --serve-trace, which says it for each request; leave it out");
    CELER_ASSIGN(Trace trace, ReadTrace(flags.trace));
    return Scaled(std::move(trace), *scale);
  }
  CELER_ASSIGN(const int64_t prompt, CountOr(flags.prompt_tokens, 256, kMaxServeTokens, "--prompt-tokens"));
  CELER_ASSIGN(const int64_t output, CountOr(flags.output_tokens, 64, kMaxServeTokens, "--output-tokens"));
  uint64_t seed = 0;
  const char* const end = flags.seed.data() + flags.seed.size();
  if (const auto read = std::from_chars(flags.seed.data(), end, seed);
      !flags.seed.empty() && (read.ec != std::errc() || read.ptr != end))
    return Error::Invalid("--serve-seed ", flags.seed, ": expected a whole number from 0 on");
  constexpr int64_t kRequests = 100;
  const int64_t requests = scale->requests > 0 ? scale->requests : kRequests;
  if (flags.poisson.empty()) {
    for (const auto& [text, flag] :
         {std::pair(&flags.rate_scale, "--rate-scale"), std::pair(&flags.seed, "--serve-seed")})
      if (!text->empty())
        return Error::Invalid(flag, " has no effect without --serve-trace or --serve-poisson; leave it out");
    return Scaled(UntimedTrace(requests, prompt, output), *scale);
  }
  CELER_ASSIGN(const double rate, ParsePositive(flags.poisson, 1e9, "--serve-poisson"));
  return Scaled(PoissonTrace(rate, requests, prompt, output, seed), *scale);
}

Result<ServeTarget> TargetOf(const ServeFlags& flags) {
  ServeTarget target;
  CELER_ASSIGN(const double ttft, PositiveOr(flags.target_ttft, 0, 1e9, "--target-ttft"));
  CELER_ASSIGN(const double gap, PositiveOr(flags.target_itl, 0, 1e9, "--target-itl"));
  target.ttft = ttft / 1e3;
  target.gap = gap / 1e3;
  return target;
}

std::span<const std::string_view> ServeOnlyFlags() {
  return kServeOnly;
}

void AddServeFlags(CLI::App& app, ServeFlags* flags) {
  const auto text = [&](const char* name, std::string* into, const char* help) {
    app.add_option(name, *into, help)->default_str("")->group("Serving");
  };
  text("--serve-trace", &flags->trace,
       "replay requests of a trace: Azure's CSV or Mooncake's JSON lines, also packed with gzip");
  text("--serve-poisson", &flags->poisson, "requests at random, so many per second on average");
  text("--prompt-tokens", &flags->prompt_tokens, "without a trace: tokens of each prompt (default 256)");
  text("--output-tokens", &flags->output_tokens, "without a trace: tokens of each answer (default 64)");
  text("--serve-seed", &flags->seed, "with --serve-poisson: of the arrivals (default 0)");
  text("--requests", &flags->requests, "the first so many (default: the whole trace, else 100)");
  text("--rate-scale", &flags->rate_scale, "requests per second times this (default 1)");
  text("--length-scale", &flags->length_scale,
       "tokens of prompts, answers and shared blocks times this (default 1)");
  text("--target-ttft", &flags->target_ttft, "milliseconds to the first token that a request may take");
  text("--target-itl", &flags->target_itl,
       "milliseconds from token to token that a request may take on average");
  text("--simulate", &flags->simulate,
       "on a modelled machine instead: a name of celer limits --list, or this; MODEL may then be a name from "
       "there, too");
  app.add_flag("--compare", flags->compare,
               "with --simulate this: measure and simulate, and print how far the simulation is off")
      ->group("Serving");
  AddParsed(app, "--efficiency", &flags->efficiency, Efficiency::Parse,
            "how near to its peaks the simulated machine comes", flags->efficiency.ToString())
      ->group("Serving");
}

Result<ServeReport> RunServe(const ServeFlags& flags, const std::string& model, EngineOptions options,
                             const std::function<void(const std::string&)>& progress) {
  if (flags.compare && flags.simulate != "this")
    return Error::Invalid("--compare measures here, so it needs --simulate this");
  ServeReport report;
  report.model = model;
  report.options = std::move(options);
  CELER_ASSIGN(report.target, TargetOf(flags));
  CELER_ASSIGN(report.trace, TraceOf(flags, &report.scale));
  if (!flags.simulate.empty() && !flags.compare)
    CELER_RETURN_IF_ERROR(Simulate(flags, &report, progress));
  else
    CELER_RETURN_IF_ERROR(Measure(flags, &report, progress));
  const Engine::Info& info = report.info;
  report.hit_bound = HitBound(report.trace, report.run.replay, info.vocab, 0);
  report.hit_bound_here =
      HitBound(report.trace, report.run.replay, info.vocab, info.kv_tokens / kKvBlockTokens);
  progress("");
  return report;
}

}  // namespace celer::cli
