// celer bench MODEL: how fast prefill and decode run here, and how near the limit that is.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <span>

#include "cli/bench/ladder.h"
#include "cli/bench/report.h"
#include "cli/bench/sample.h"
#include "cli/bench_serve/bench_serve.h"
#include "cli/bench_server/bench_server.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/engine_flags.h"
#include "cli/shared/trace_flag.h"
#include "io/file/atomic_file.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "models/config/presets.h"
#include "models/load/model.h"
#include "report/progress.h"

namespace celer::cli {
namespace {

struct BenchFlags {
  std::string model, html, ladder;
  EngineOptions engine;
  TraceFlag trace;
  std::vector<std::string> prompts, depths, batches;
  std::string tokens, repeat;
  bool ops = false, json = false, sample = false;
  ServeFlags serve;
  ServerFlags server;
};

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxBatch = 4096;

Result<int64_t> CountOrZero(const std::string& text, int64_t max, const char* flag) {
  if (text == "0") return 0;
  return ParseCount(text, max, flag);
}

Result<std::vector<int64_t>> Counts(const std::vector<std::string>& texts, int64_t max, bool zero,
                                    const char* flag) {
  std::vector<int64_t> values;
  for (const std::string& text : texts) {
    CELER_ASSIGN(const int64_t value, zero ? CountOrZero(text, max, flag) : ParseCount(text, max, flag));
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
  return values;
}

Result<BenchPlan> MakePlan(const BenchFlags& flags, int64_t model_positions) {
  BenchPlan plan;
  plan.ops = flags.ops;
  if (!flags.tokens.empty()) {
    CELER_ASSIGN(plan.tokens, CountOrZero(flags.tokens, kMaxTokens, "--tokens"));
  } else {
    plan.tokens = std::clamp<int64_t>(model_positions / 2, 1, plan.tokens);
  }
  if (!flags.repeat.empty()) {
    CELER_ASSIGN(plan.repeat, ParseCount(flags.repeat, 10000, "--repeat"));
  }
  if (!flags.prompts.empty()) {
    CELER_ASSIGN(plan.prompts, Counts(flags.prompts, kMaxTokens, true, "--prompt"));
    std::erase(plan.prompts, 0);
  } else {
    plan.prompts = {std::clamp<int64_t>(model_positions - 1, 1, plan.prompts.front())};
  }
  if (!flags.depths.empty()) {
    CELER_ASSIGN(plan.depths, Counts(flags.depths, kMaxTokens, true, "--depth"));
  }
  if (!flags.batches.empty()) {
    CELER_ASSIGN(plan.batches, Counts(flags.batches, kMaxBatch, false, "--batch"));
  }
  if (plan.prompts.empty() && plan.tokens == 0)
    return Error::Invalid("--prompt 0 and --tokens 0 leave nothing to measure");
  if (plan.positions() > model_positions)
    return Error::Invalid("the longest sequence needs ", plan.positions(), " positions and the model has ",
                          model_positions, "; choose a smaller --prompt, --depth or --tokens");
  return plan;
}

// Said at once, not after minutes of measuring.
Status CheckPage(const BenchFlags& flags) {
  return flags.html.empty() ? Status() : CheckWritable(flags.html);
}

Result<int> Print(const BenchFlags& flags, const auto& report, auto html, auto json, auto text) {
  // Files first: an answer followed by an error would look like success.
  if (!flags.html.empty()) CELER_RETURN_IF_ERROR(WriteFile(flags.html, html(report)));
  if (flags.json)
    fmt::print("{}\n", JsonText(json(report), 2));
  else
    fmt::print("{}", text(report));
  return kOk;
}

Result<int> Run(BenchFlags& flags) {
  constexpr std::string_view kRandom = "random:";
  DecoderConfig config;
  if (flags.model.starts_with(kRandom)) {  // a preset's shape with weights made up on the GPU
    flags.engine.model = flags.model;
    CELER_ASSIGN(config, FindConfigPreset(std::string_view(flags.model).substr(kRandom.size())));
  } else {
    CELER_RETURN_IF_ERROR(ResolveModels(flags.model, &flags.engine));
    CELER_ASSIGN(config, LoadDecoderConfig(flags.engine.model));
  }
  BenchReport report;
  CELER_ASSIGN(report.plan, MakePlan(flags, config.max_positions));
  const int64_t positions = report.plan.positions();
  if (flags.engine.context == 0) flags.engine.context = positions;
  if (flags.engine.context < positions)
    return Error::Invalid("--context ", flags.engine.context, ": the longest sequence needs ", positions,
                          " positions");
  flags.engine.sequences = report.plan.max_batch();
  flags.engine.chunk = std::max(flags.engine.chunk, report.plan.max_batch());  // a step is the whole batch

  CELER_RETURN_IF_ERROR(CheckPage(flags));
  CELER_RETURN_IF_ERROR(flags.trace.Open());
  const StatusLine line;
  CELER_ASSIGN(Bench bench, Bench::Load(
                                flags.engine, report.plan, [&](const std::string& text) { line.Show(text); },
                                [&](Engine& engine) { flags.trace.Attach(engine); }));
  line.Show("measuring this machine (once)");
  CELER_ASSIGN(report.machine, MachineOf(bench.engine().info(), /*allow_measure=*/true));
  CELER_ASSIGN(report.results, bench.Run());
  line.Show("");
  report.model = flags.model;
  report.options = flags.engine;
  report.info = bench.engine().info();
  report.start = bench.start();
  CELER_RETURN_IF_ERROR(flags.trace.Close());

  return Print(flags, report, BenchHtml, BenchJson, BenchText);
}

Result<int64_t> RepeatOf(const BenchFlags& flags) {
  if (flags.repeat.empty()) return BenchPlan().repeat;
  return ParseCount(flags.repeat, 10000, "--repeat");
}

Result<int> RunSample(const BenchFlags& flags) {
  CELER_ASSIGN(const int64_t repeat, RepeatOf(flags));
  const SampleReport report = MeasureSampling(repeat);
  if (flags.json)
    fmt::print("{}\n", JsonText(SampleJson(report), 2));
  else
    fmt::print("{}", SampleText(report));
  return int{kOk};
}

Result<int> RunLadder(const BenchFlags& flags) {
  CELER_ASSIGN(const int64_t repeat, RepeatOf(flags));
  CELER_RETURN_IF_ERROR(CheckPage(flags));
  const StatusLine line;
  const DeviceOptions device =
      flags.engine.device == DeviceOptions::Auto() ? DeviceOptions::Cuda() : flags.engine.device;
  CELER_ASSIGN(const LadderReport report, MeasureLadder(flags.ladder, device, repeat,
                                                        [&](const std::string& text) { line.Show(text); }));
  line.Show("");
  return Print(flags, report, LadderHtml, LadderJson, LadderText);
}

Result<int> PrintLoad(const BenchFlags& flags, const LoadReport& report) {
  return Print(
      flags, report, LoadHtml, [](const LoadReport& load) { return load.json; }, LoadText);
}

Result<int> RunServing(const BenchFlags& flags) {
  CELER_RETURN_IF_ERROR(CheckPage(flags));
  const StatusLine line;
  CELER_ASSIGN(const ServeReport report, RunServe(flags.serve, flags.model, flags.engine,
                                                  [&](const std::string& text) { line.Show(text); }));
  return PrintLoad(flags, Describe(report));
}

#if CELER_WITH_TEXT
Result<int> RunOnServer(const BenchFlags& flags) {
  CELER_RETURN_IF_ERROR(CheckPage(flags));
  const StatusLine line;
  CELER_ASSIGN(const ServerReport report, RunServer(flags.server, flags.serve, flags.model,
                                                    [&](const std::string& text) { line.Show(text); }));
  CELER_ASSIGN(const int code, PrintLoad(flags, Describe(report)));
  return report.metrics.done > 0 ? code : kFailed;
}
#endif

// A flag that was given without an effect on what is measured, as a sentence.
Status CheckFlags(const CLI::App& app, const BenchFlags& flags) {
  const auto given = [&](std::string_view name) {
    const CLI::Option* option = app.get_option_no_throw(std::string(name));
    return option != nullptr && option->count() > 0;
  };
  // What is measured instead of a model here knows few of the flags.
  constexpr std::string_view kLadderFlags[] = {"--ladder", "--device", "--repeat", "--json", "--html"};
  constexpr std::string_view kSampleFlags[] = {"--sample", "--repeat", "--json"};
  std::span<const std::string_view> known;
  if (flags.sample) known = kSampleFlags;
  if (!flags.ladder.empty()) known = kLadderFlags;
#if CELER_WITH_TEXT
  if (flags.server.wanted()) known = ServerFlagNames();
  const char* what = flags.server.wanted() ? "--server" : flags.sample ? "--sample" : "--ladder";
#else
  const char* what = flags.sample ? "--sample" : "--ladder";
#endif
  if (!known.empty()) {
    for (const CLI::Option* option : app.get_options())
      if (option->count() > 0 && std::find(known.begin(), known.end(), option->get_name()) == known.end())
        return Error::Invalid(option->get_name(), " has no effect with ", what, "; leave it out");
    return {};
  }
#if CELER_WITH_TEXT
  for (const std::string_view name : ServerOnlyFlags())
    if (given(name)) return Error::Invalid(name, " needs --server URL");
#endif
  // And which of MODEL's belong to one of its two measurements alone.
  constexpr std::string_view kOneShapeFlags[] = {"--prompt", "--depth",  "--batch",
                                                 "--tokens", "--repeat", "--ops"};
  const bool serve = flags.serve.wanted();
  for (const std::string_view name :
       serve ? std::span<const std::string_view>(kOneShapeFlags) : ServeOnlyFlags())
    if (given(name))
      return Error::Invalid(name, serve ? " has no effect when a trace is served; leave it out"
                                        : " needs --serve-trace or --serve-poisson");
  return {};
}

}  // namespace

int BenchCommand(const std::vector<std::string>& args) {
  BenchFlags flags;
  CommandLine app("bench", "how fast a model runs here, and how near the limit that is",
                  "celer bench smollm2 --prompt 256,1024 --depth 0,4096 --ops");
  AddEngineFlags(app, &flags.model, &flags.engine);
  app.add_option(
      "--ladder", flags.ladder,
      "instead of MODEL: a preset of celer limits, decoded on a GPU with random weights, from plain "
      "launches to int4 step by step");
  app.add_flag("--sample", flags.sample,
               "instead of MODEL: what choosing a token costs on the CPU, for several vocabularies");
  app.get_option("MODEL")->required(false);
  AddParsed(app, "--launch", &flags.engine.launch, ParseStepLaunch,
            "how a GPU's decode steps start: eager, graph, or fused into one kernel where possible",
            Name(flags.engine.launch));
  app.add_option("--context", flags.engine.context,
                 "tokens of the longest sequence (0: as many as are needed)");
  const auto list = [&](const char* flag, std::vector<std::string>& into, const char* help) {
    app.add_option(flag, into, help)->delimiter(',')->allow_extra_args(false)->default_str("");
  };
  list("--prompt", flags.prompts, "prompt lengths whose prefill is measured (default 256; 0: no prefill)");
  list("--depth", flags.depths,
       "tokens in the KV before the first measured decode step, in whole blocks of 16 (default 0)");
  list("--batch", flags.batches, "sequences that run together (default 1)");
  app.add_option("--tokens", flags.tokens, "decode steps of one repetition (default 64; 0: no decode)")
      ->default_str("");
  app.add_option("--repeat", flags.repeat, "repetitions of each measurement (default 5)")->default_str("");
  app.add_flag("--ops", flags.ops, "where the time goes, operator by operator");
  flags.trace.AddTo(app);
  app.add_flag("--json", flags.json, "one JSON object with every sample");
  app.add_option("--html", flags.html,
                 "write a self-contained page with bars against the limits and, with several --batch, "
                 "throughput over batch size");
  AddServeFlags(app, &flags.serve);
#if CELER_WITH_TEXT
  AddServerFlags(app, &flags.server);
#endif
  app.footer(
      "Every combination of the lists is measured, with random token ids through the same engine as celer "
      "run. Lengths "
      "may be written 4k. The limit counts weights and KV once, at the bandwidth and the peaks of celer "
      "probe with as many cores as there are threads.");
  if (const auto stop = Parse(app, args)) return *stop;
  const bool on_server = flags.server.wanted();  // MODEL may be named, then
  if ((!flags.model.empty() && !on_server) + !flags.ladder.empty() + flags.sample + on_server != 1)
    return Fail(Error::Invalid(
        "one of MODEL, --ladder PRESET, --sample and --server URL is measured; try celer bench smollm2"));
  if (const Status right = CheckFlags(app, flags); !right) return Fail(right.error());
  const auto code = flags.sample            ? RunSample(flags)
                    : !flags.ladder.empty() ? RunLadder(flags)
#if CELER_WITH_TEXT
                    : on_server ? RunOnServer(flags)
#endif
                    : flags.serve.wanted() ? RunServing(flags)
                                           : Run(flags);
  return code ? *code : Fail(code.error());
}

}  // namespace celer::cli
