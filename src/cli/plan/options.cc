#include "cli/plan/options.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/result.h"
#include "cli/shared/engine_flags.h"
#include "hub/model_path.h"
#include "limits/measured_machine.h"
#include "limits/quantity.h"
#include "models/config/presets.h"
#include "models/load/model.h"

namespace celer::cli {
namespace {

constexpr double kMostPerSecond = 1e9;
constexpr int64_t kMostTokens = int64_t{1} << 24, kMostReplicas = 1'000'000'000, kMostChunk = 65536;

// "llama-3.1-8b" of "random:llama-3.1-8b", whose weights are made up on a GPU; "": it is no such model.
std::string NameOfRandom(const std::string& model) {
  constexpr std::string_view kRandom = "random:";
  return model.starts_with(kRandom) ? model.substr(kRandom.size()) : "";
}

Result<PlanLoad> LoadOf(const PlanFlags& flags) {
  const std::string* described[] = {&flags.rate, &flags.prompt, &flags.output};
  if (!flags.load.empty()) {
    for (const std::string* text : described)
      if (!text->empty())
        return Error::Invalid("--load says it for each request; leave --rate, --prompt and --output out");
    TraceScale scale;
    CELER_ASSIGN(scale.rate, ParsePositive(flags.rate_scale, kMostPerSecond, "--rate-scale"));
    CELER_ASSIGN(scale.length, ParsePositive(flags.length_scale, 1e3, "--length-scale"));
    CELER_ASSIGN(Trace trace, ReadTrace(flags.load));
    return TraceLoad(Scaled(std::move(trace), scale));
  }
  if (flags.rate_scale != "1" || flags.length_scale != "1")
    return Error::Invalid("--rate-scale and --length-scale change a trace; give one with --load");
  if (flags.prompt.empty() || flags.output.empty())
    return Error::Invalid("the load is missing; give --load FILE, or --prompt and --output with --rate");
  CELER_ASSIGN(const int64_t prompt, ParseCount(flags.prompt, kMostTokens, "--prompt"));
  CELER_ASSIGN(const int64_t output, ParseCount(flags.output, kMostTokens, "--output"));
  double rate = 0;
  if (!flags.rate.empty()) {
    CELER_ASSIGN(rate, ParsePositive(flags.rate, kMostPerSecond, "--rate"));
  }
  return RandomLoad(rate, prompt, output);
}

Result<PlanTarget> TargetOf(const PlanFlags& flags) {
  PlanTarget target;
  if (!flags.ttft.empty()) {
    CELER_ASSIGN(target.ttft_s, ParseDuration(flags.ttft, "--ttft"));
  }
  if (!flags.tpot.empty()) {
    CELER_ASSIGN(target.tpot_s, ParseDuration(flags.tpot, "--tpot"));
  }
  std::string_view percentile = flags.percentile;
  if (percentile.starts_with('p')) percentile.remove_prefix(1);
  for (const int known : {50, 90, 99})
    if (percentile == std::to_string(known)) {
      target.percentile = known;
      return target;
    }
  return Error::Invalid("--percentile '", flags.percentile, "': must be 50, 90 or 99");
}

// Times steps of the model here, as celer bench --simulate this --compare does, with the chunk, the KV and the weights that
// are asked for, where that is one of each.
Result<PlanMachine> TimedHere(const PlanFlags& flags, const std::string& model, const DecoderConfig& config,
                              const std::function<void(const std::string&)>& progress) {
  EngineOptions options;
  options.model = model;
  options.device = DeviceOptions::Auto();
  if (flags.chunks.size() == 1) {
    CELER_ASSIGN(options.chunk, ParseCount(flags.chunks.front(), kMostChunk, "--chunk"));
  }
  if (flags.kv.size() == 1) {
    CELER_ASSIGN(options.kv, ParseKvType(flags.kv.front()));
  }
  if (flags.weights.size() == 1) {
    CELER_ASSIGN(options.weights, WeightOptions::Parse(flags.weights.front()));
  }
  options.mixed_chunk = options.chunk;  // as the load is played (plan/check.cc)
  options.context = std::min(config.max_positions, std::max(kMeasuredPositions, 2 * options.chunk + 1));
  progress("loading the model");
  CELER_ASSIGN(const std::unique_ptr<Engine> engine, Engine::Load(options));
  PlanMachine here;
  progress("measuring this machine (once)");
  CELER_ASSIGN(here.machine, MachineOf(engine->info(), /*allow_measure=*/true));
  progress("timing steps");
  CELER_RETURN_IF_ERROR(WarmUp(*engine));
  CELER_ASSIGN(std::vector<MeasuredStep> steps, MeasureSteps(*engine, options));
  const StepCost cost(config, [&](const StepShape& shape) { return engine->Work(shape); });
  FittedEfficiency fitted{.efficiency = FitEfficiency(cost, here.machine, steps),
                          .basis = std::to_string(steps.size()) + " kinds of steps, timed here",
                          .errors = {}};
  fitted.errors = FitErrors(StepTime(cost, here.machine, fitted.efficiency), steps);
  fitted.timed = std::move(steps);
  here.cuda = !DeviceOf(engine->info()).is_cpu();
  here.timed = std::make_shared<const FittedEfficiency>(std::move(fitted));
  here.like = here.machine.name = "this";
  return here;
}

Result<PlanMachine> ThisMachine(const PlanFlags& flags,
                                const std::function<void(const std::string&)>& progress) {
  if (const std::string name = NameOfRandom(flags.model); !name.empty()) {
    CELER_ASSIGN(const DecoderConfig config, FindConfigPreset(name));
    return TimedHere(flags, flags.model, config, progress);
  }
  if (!FindConfigPreset(flags.model)) {
    const auto path = ResolveModelPath(flags.model);
    if (path && path->extension() != ".json") {
      CELER_ASSIGN(const DecoderConfig config, LoadDecoderConfig(*path));
      return TimedHere(flags, path->string(), config, progress);
    }
  }
  // Of a name alone nothing can be timed: the efficiency is that of a machine of its kind.
  PlanMachine here;
  CELER_ASSIGN(here.machine, LoadOrMeasureThisMachine());
  here.cuda = here.machine.flops.contains("tf32");
#if defined(__x86_64__)
  here.like = here.cuda ? "h200" : "xeon-spr-16c";
#else
  here.like = here.cuda ? "h200" : "neoverse-v1-2c";
#endif
  here.machine.name = "this";
  return here;
}

Result<std::vector<PlanMachine>> MachinesOf(const PlanFlags& flags,
                                            const std::function<void(const std::string&)>& progress) {
  const PlanMachines& known = PlanMachines::BuiltIn();
  if (flags.machines.empty() || (flags.machines.size() == 1 && flags.machines.front() == "all"))
    return std::vector(known.machines().begin(), known.machines().end());
  std::vector<PlanMachine> machines;
  for (const std::string& name : flags.machines) {
    if (name == "all") return Error::Invalid("--machines all stands alone; leave the other names out");
    PlanMachine machine;
    if (name == "this") {
      CELER_ASSIGN(machine, ThisMachine(flags, progress));
    } else {
      CELER_ASSIGN(machine, known.Find(name));
    }
    const bool twice = std::any_of(machines.begin(), machines.end(), [&](const PlanMachine& other) {
      return other.machine.name == machine.machine.name;
    });
    if (!twice) machines.push_back(std::move(machine));
  }
  return machines;
}

Result<std::vector<PlanWeights>> WeightsOf(const PlanFlags& flags) {
  std::vector<std::string> names = flags.weights;
  // A file is as it is; of a name every width is looked at.
  if (names.empty() && !NameOfRandom(flags.model).empty())
    names = {"bf16"};
  else if (names.empty())
    names = FindConfigPreset(flags.model) || flags.model.ends_with(".json")
                ? std::vector<std::string>{"bf16", "int8", "int4-g128"}
                : std::vector<std::string>{"stored"};
  std::vector<PlanWeights> weights;
  for (const std::string& name : names) {
    CELER_ASSIGN(const WeightOptions parsed, WeightOptions::Parse(name));
    for (const std::string& text :
         flags.activations.empty() ? std::vector<std::string>{"16bit"} : flags.activations) {
      CELER_ASSIGN(const Activations activations, ParseActivations(text));
      const bool narrow = parsed.format == WeightFormat::kInt8 || parsed.format == WeightFormat::kInt4 ||
                          parsed.format == WeightFormat::kFp8 || parsed.format == WeightFormat::kAsStored;
      if (activations == Activations::k16Bit || narrow)
        weights.push_back({.weights = parsed, .activations = activations});
    }
  }
  if (weights.empty())
    return Error::Invalid(
        "--activations of 8 bits need --weights of 8 or 4 bits; add 16bit, or int8 weights");
  return weights;
}

Result<std::vector<int64_t>> CountsOf(const std::vector<std::string>& texts, int64_t most, const char* flag) {
  std::vector<int64_t> counts;
  for (const std::string& text : texts) {
    CELER_ASSIGN(const int64_t count, ParseCount(text, most, flag));
    if (std::find(counts.begin(), counts.end(), count) == counts.end()) counts.push_back(count);
  }
  return counts;
}

}  // namespace

Result<double> ParseDuration(std::string_view text, std::string_view what) {
  constexpr double kLongest = 86400;
  for (const auto& [unit, scale] : {std::pair<std::string_view, double>{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}})
    if (text.ends_with(unit)) {
      CELER_ASSIGN(const double value,
                   ParsePositive(text.substr(0, text.size() - unit.size()), kLongest / scale, what));
      return value * scale;
    }
  return Error::Invalid(what, " '", std::string(text),
                        "': expected seconds or milliseconds, as in 2s or 50ms");
}

void PlanFlags::AddTo(CLI::App& app) {
  app.add_option(
      "MODEL", model,
      "a name of celer limits --list, a config.json, a pulled name, a GGUF file or a Hugging Face folder");
  const auto text = [&](const char* flag, std::string* into, const char* help) {
    app.add_option(flag, *into, help);
  };
  const auto several = [&](const char* flag, std::vector<std::string>& into, const char* help) {
    app.add_option(flag, into, help)->delimiter(',')->allow_extra_args(false);
  };
  text("--load", &load, "a trace of requests: Azure's CSV or Mooncake's JSON lines, also packed with gzip");
  text("--rate", &rate, "without a trace: requests per second, at random; none: how many the machines hold");
  text("--prompt", &prompt, "without a trace: tokens of each prompt");
  text("--output", &output, "without a trace: tokens of each answer");
  text("--rate-scale", &rate_scale, "with --load: requests per second times this (default 1)");
  text("--length-scale", &length_scale, "with --load: tokens times this (default 1)");
  text("--ttft", &ttft, "that the first token may take, e.g. 2s (default: any)");
  text("--tpot", &tpot, "that each further token may take on average, e.g. 50ms (default: any)");
  text("--percentile", &percentile, "of the requests that are to be within both: 50, 90 (default) or 99");
  several("--machines", machines,
          "h200,a100,rtx4090, ..., 'this' or 'all', the default (see --list); each replica has one");
  text("--price", &price, "a file with prices per hour (docs/plan.md); without it the fewest devices win");
  several("--weights", weights, "formats to look at (default: as stored, or bf16,int8,int4-g128 of a name)");
  several("--activations", activations, "on GPUs with narrow weights: 16bit (default), fp8, int8");
  several("--kv", kv, "types of keys and values to look at (default f16,int8)");
  several("--tp", devices,
          "devices that share every layer, e.g. 1,2,4 (default 1); more are estimates and never win");
  several("--chunk", chunks, "tokens of a step to look at (default: five sizes on a GPU, three on a CPU)");
  text("--speculate", &speculate, "drafted tokens of a step and the share that is accepted, e.g. 4,0.7");
  text("--count", &count, "replicas there are: whether they hold the load, or what they hold");
  text("--efficiency", &efficiency, "read=0.8,arithmetic=0.6,... instead of the measured ones");
  app.add_flag("--no-simulation", no_simulation,
               "estimates alone, without playing the load on the best ones");
  app.add_flag("--json", json, "print one JSON object");
  app.add_flag("--brief", brief, "without the Kubernetes manifest");
  app.add_option("--svg", svg, "write the charts as one picture");
  app.add_option("--html", html, "write everything as one self-contained page");
  app.add_flag("--list", list, "list the machines and what their figures rest on");
}

Result<PlanQuery> MakePlanQuery(const PlanFlags& flags,
                                const std::function<void(const std::string&)>& progress) {
  PlanQuery query;
  if (flags.model.empty())
    return Error::Invalid("MODEL is missing; give a name from celer limits --list, or a path");
  const std::string random = NameOfRandom(flags.model);
  if (!random.empty() && flags.machines != std::vector<std::string>{"this"})
    return Error::Invalid("MODEL ", flags.model,
                          " is timed on this machine; add --machines this, or plan for ", random);
  query.model = random.empty() ? flags.model : random;
  CELER_ASSIGN(query.load, LoadOf(flags));
  CELER_ASSIGN(query.target, TargetOf(flags));
  CELER_ASSIGN(query.weights, WeightsOf(flags));
  for (const std::string& name : flags.kv.empty() ? std::vector<std::string>{"f16", "int8"} : flags.kv) {
    CELER_ASSIGN(const KvType kv, ParseKvType(name));
    query.kv.push_back(kv);
  }
  constexpr int64_t kMostDevices = 64;
  if (!flags.devices.empty()) {
    CELER_ASSIGN(query.devices, CountsOf(flags.devices, kMostDevices, "--tp"));
  }
  CELER_ASSIGN(query.chunks, CountsOf(flags.chunks, kMostChunk, "--chunk"));
  if (!flags.count.empty()) {
    CELER_ASSIGN(query.count, ParseCount(flags.count, kMostReplicas, "--count"));
  }
  if (!flags.speculate.empty()) {
    CELER_ASSIGN(query.draft, DraftAcceptance::Parse(flags.speculate));
  }
  if (!flags.efficiency.empty()) {
    const auto parsed = Efficiency::Parse(flags.efficiency);
    if (!parsed) return Error::Invalid(WithFlags(parsed.error().message()));
    query.efficiency = *parsed;
  }
  if (!flags.price.empty()) {
    CELER_ASSIGN(query.prices, Prices::Read(flags.price));
  }
  query.simulate = !flags.no_simulation;
  CELER_ASSIGN(query.machines, MachinesOf(flags, progress));
  return query;
}

}  // namespace celer::cli
