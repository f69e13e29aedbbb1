// Decode and prefill on a GPU through the engine, with random weights: tokens per second and the share of
// what the memory allows, beside what other engines reach there where that is known.
//   celer_cuda_bench --model llama-2-7b --weights bf16,int8,int4-g128 --tokens 128 --prompt 8
// With -tp N on N ranks, beside one rank, and the time of an all-reduce between them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <set>
#include <vector>

#include "base/result.h"
#include "celer/engine.h"
#include "cuda_exchange.h"
#include "cuda_table.h"
#include "models/config/presets.h"
#include "models/lora/random_lora.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::vector<std::string> models = {"llama-2-7b"}, weights = {"bf16", "int8", "int4-g128"};
  std::vector<int64_t> prompts = {8}, batches = {1};
  int64_t tokens = 128, chunk = 512;
  int64_t mixed_chunk = -1;  // -1: chunk
  bool deterministic = false, ops = false, no_rows = false;
  std::string activations = "16bit";
  int repeat = 5;
  int64_t ranks = 1;
  int64_t lora = 0, rank = 16;  // adapters besides
  bool lora_f32 = false;
  double bandwidth = 4390;  // GB/s
  std::string device = "cuda", launch = Name(celer::EngineOptions().launch), table;
  celer::SamplingParams sampling;
};

struct Timing {
  double prefill_seconds = 0;
  double decode_seconds = 0;  // per token
  double all_seconds = 0;     // from the first prompt to the last token
};

using Mixes = std::vector<std::shared_ptr<const celer::LoraMix>>;

// The sequences have the adapters in turns; none: the model alone.
celer::Result<Timing> RunOnce(celer::Engine& engine, int64_t prompt, int64_t batch, int64_t tokens,
                              const celer::SamplingParams& sampling, const Mixes& mixes) {
  for (int64_t b = 0; b < batch; ++b) {
    celer::Request request;
    for (int64_t i = 0; i < prompt; ++i)
      request.prompt.push_back(static_cast<int32_t>((i * 7919 + b * 104729 + 13) % engine.info().vocab));
    request.max_tokens = tokens;
    request.sampling = sampling;
    request.sampling.seed = static_cast<uint64_t>(b);
    if (!mixes.empty()) request.lora = mixes[static_cast<size_t>(b) % mixes.size()];
    CELER_ASSIGN([[maybe_unused]] const int64_t id, engine.Submit(std::move(request)));
  }
  // Decoding is timed from the step after which every sequence has begun until the first one ends.
  const auto start = Clock::now();
  auto first = start, last = start;
  std::set<int64_t> begun;
  int64_t counted = 0;
  bool ended = false;
  while (engine.HasWork()) {
    const bool steady = static_cast<int64_t>(begun.size()) == batch && !ended;
    const std::vector<celer::TokenEvent> events = engine.Step();
    if (engine.fault()) return *engine.fault();
    const auto now = Clock::now();
    for (const celer::TokenEvent& event : events) {
      begun.insert(event.request);
      ended = ended || event.finish != celer::FinishReason::kNone;
    }
    if (steady) {
      counted += static_cast<int64_t>(events.size());
      last = now;
    } else if (!ended && static_cast<int64_t>(begun.size()) == batch) {
      first = now;
    }
  }
  const auto seconds = [](auto d) { return std::chrono::duration<double>(d).count(); };
  return Timing{seconds(first - start),
                counted > 0 ? seconds(last - first) / static_cast<double>(counted) : 0,
                seconds(Clock::now() - start)};
}

// Where the time of a decode step goes, operators timed one by one.
celer::Status ShowOperators(celer::Engine& engine, int64_t prompt, int64_t batch, const Flags& flags,
                            const Mixes& mixes) {
  constexpr int kSteps = 8;
  std::set<int64_t> begun;
  std::vector<int64_t> all;
  for (int64_t b = 0; b < batch; ++b) {
    celer::Request request;
    for (int64_t i = 0; i < prompt; ++i)
      request.prompt.push_back(static_cast<int32_t>((i * 7919 + b * 104729 + 13) % engine.info().vocab));
    request.max_tokens = flags.tokens;
    if (!mixes.empty()) request.lora = mixes[static_cast<size_t>(b) % mixes.size()];
    CELER_ASSIGN(const int64_t id, engine.Submit(std::move(request)));
    all.push_back(id);
  }
  while (static_cast<int64_t>(begun.size()) < batch && engine.HasWork())
    for (const celer::TokenEvent& event : engine.Step()) begun.insert(event.request);
  engine.StartProfile();
  for (int i = 0; i < kSteps; ++i) engine.Step();
  engine.StopProfile();
  for (const int64_t id : all) engine.Cancel(id);
  while (engine.HasWork()) engine.Step();
  std::string line;
  for (const celer::OperatorTime& op : engine.Profile())
    line += fmt::format("  {} {:.3f}", op.name, op.seconds * 1e3 / kSteps);
  fmt::print(" ms of a step:{}\n", line);
  return {};
}

// Half of the runs take longer.
double Median(const std::vector<Timing>& runs, double Timing::*member) {
  std::vector<double> values;
  for (const Timing& t : runs) values.push_back(t.*member);
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

celer::Result<std::vector<Timing>> RunOften(celer::Engine& engine, const BenchWork& work, const Flags& flags,
                                            const Mixes& mixes) {
  std::vector<Timing> runs;
  for (int i = 0; i < flags.repeat + 1; ++i) {
    CELER_ASSIGN(const Timing timing,
                 RunOnce(engine, work.prompt, work.batch, flags.tokens, flags.sampling, mixes));
    if (i > 0) runs.push_back(timing);  // the first one captures graphs
  }
  return runs;
}

// The same with adapters, beside what it was without: `none`.
celer::Status MeasureLora(celer::Engine& engine, const BenchWork& work, const Flags& flags,
                          const std::vector<Timing>& none, const Mixes& mixes) {
  CELER_ASSIGN(const std::vector<Timing> with, RunOften(engine, work, flags, mixes));
  const auto of = [&](double Timing::*member) { return Median(none, member) / Median(with, member); };
  const double step = Median(with, &Timing::decode_seconds) * static_cast<double>(work.batch);
  fmt::print(
      "  with {} adapters of rank {} in {}: {:.1f} decode t/s, {:.3f} ms/step; speed to none: decode {:.3f}, "
      "prefill {:.3f}\n",
      flags.lora, flags.rank, flags.lora_f32 ? "f32" : "bf16", 1 / Median(with, &Timing::decode_seconds),
      step * 1e3, of(&Timing::decode_seconds), of(&Timing::prefill_seconds));
  if (flags.ops) return ShowOperators(engine, work.prompt, work.batch, flags, mixes);
  return {};
}

celer::Status Measure(celer::Engine& engine, const BenchWork& work, const Flags& flags, const Mixes& mixes) {
  CELER_ASSIGN(const std::vector<Timing> runs, RunOften(engine, work, flags, {}));
  const double prefill = Median(runs, &Timing::prefill_seconds);
  const double decode = Median(runs, &Timing::decode_seconds);
  if (flags.tokens > 1 && decode == 0)
    fmt::print(stderr,
               "{} sequences of {}: the first one ended before the last began, so no step had all of "
               "them; ask for more than {} --tokens or a larger --chunk\n",
               work.batch, work.prompt, flags.tokens);
  const double width = static_cast<double>(work.batch);
  const Beside step = BesideDecode(engine, work, decode > 0 ? 1 / decode : 0, flags.bandwidth * 1e9);
  const double prompts = width * static_cast<double>(work.prompt) / prefill;
  fmt::print("{:14} {:10} {:6} {:6} {:6} {:11.0f} {:11.1f} {:8.3f} {:10.1f} {:7.3f} {:9.1f} {:>9} {:>7}\n",
             work.model, work.weights, work.batch, work.prompt, work.tokens, prompts, step.speed,
             decode * width * 1e3, step.limit, step.speed / step.limit,
             width * static_cast<double>(flags.tokens) / Median(runs, &Timing::all_seconds),
             step.peer > 0 ? fmt::format("{:.0f}", step.peer) : "-",
             step.peer > 0 ? fmt::format("{:.2f}", step.speed / step.peer) : "-");
  if (!flags.table.empty()) {
    const bool of_prompts = flags.tokens <= 2;  // too few to be a measurement of decoding
    CELER_RETURN_IF_ERROR(AppendToTable(flags.table, work, of_prompts,
                                        of_prompts ? BesidePrefill(engine, work, prompts) : step));
  }
  if (flags.ops) CELER_RETURN_IF_ERROR(ShowOperators(engine, work.prompt, work.batch, flags, {}));
  if (!mixes.empty()) CELER_RETURN_IF_ERROR(MeasureLora(engine, work, flags, runs, mixes));
  std::fflush(stdout);
  return {};
}

celer::Status BenchModel(const std::string& model, const std::string& weights, const Flags& flags,
                         int64_t ranks) {
  const int64_t longest = *std::max_element(flags.prompts.begin(), flags.prompts.end());
  CELER_ASSIGN(const celer::WeightOptions format, celer::WeightOptions::Parse(weights));
  CELER_ASSIGN(const celer::DeviceOptions device, celer::DeviceOptions::Parse(flags.device));
  CELER_ASSIGN(const celer::StepLaunch launch, celer::ParseStepLaunch(flags.launch));
  CELER_ASSIGN(const celer::Activations activations, celer::ParseActivations(flags.activations));
  Mixes mixes;
  int64_t lora_memory = 0;
  for (int64_t i = 0; i < flags.lora; ++i) {
    CELER_ASSIGN(const celer::DecoderConfig config, celer::FindConfigPreset(model));
    auto adapter = celer::MakeRandomLora(config, {.name = fmt::format("random-{}", i),
                                                  .rank = flags.rank,
                                                  .seed = static_cast<uint32_t>(i + 1),
                                                  .bf16 = !flags.lora_f32});
    lora_memory += celer::DeviceBytesOf(*adapter);
    CELER_ASSIGN(auto mix, celer::LoraMix::Make({{.adapter = std::move(adapter)}}));
    mixes.push_back(std::move(mix));
  }
  celer::EngineOptions options{.model = "random:" + model,
                               .weights = format,
                               .device = device,
                               .launch = launch,
                               .context = (longest + flags.tokens + 32) / 16 * 16,
                               .chunk = flags.chunk,
                               .mixed_chunk = flags.mixed_chunk < 0 ? flags.chunk : flags.mixed_chunk,
                               .sequences = *std::max_element(flags.batches.begin(), flags.batches.end()),
                               .prefix_cache = false,
                               .deterministic = flags.deterministic,
                               .row_copies = flags.no_rows ? celer::RowCopies::kOff : celer::RowCopies::kAuto,
                               .activations = activations,
                               .lora = {.memory = lora_memory}};
  options.parallel.tensor_parallel_size = ranks;
  const auto loading = Clock::now();
  CELER_ASSIGN(const std::unique_ptr<celer::Engine> engine, celer::Engine::Load(options));
  fmt::print(stderr, "{} {} on {}: ready in {:.2f} s\n", model, weights, engine->info().device,
             std::chrono::duration<double>(Clock::now() - loading).count());
  for (const int64_t prompt : flags.prompts)
    for (const int64_t batch : flags.batches)
      CELER_RETURN_IF_ERROR(Measure(*engine,
                                    {.model = model,
                                     .weights = weights,
                                     .prompt = prompt,
                                     .batch = batch,
                                     .tokens = flags.tokens,
                                     .activations = activations,
                                     .deterministic = flags.deterministic,
                                     .no_rows = flags.no_rows},
                                    flags, mixes));
  return {};
}

int Bench(const Flags& flags) {
  if (flags.ranks > 1)
    if (const celer::Status done = BenchAllReduce(static_cast<int>(flags.ranks)); !done) {
      fmt::print(stderr, "error: {}\n", done.error().message());
      return 1;
    }
  fmt::print("{:14} {:10} {:>6} {:>6} {:>6} {:>11} {:>11} {:>8} {:>10} {:>7} {:>9} {:>9} {:>7}\n", "model",
             "weights", "batch", "prompt", "new", "prefill t/s", "decode t/s", "ms/step", "limit t/s",
             "ratio", "all t/s", "peer t/s", "to peer");
  for (const std::string& model : flags.models)
    for (const std::string& weights : flags.weights)
      for (int64_t ranks = 1; ranks <= flags.ranks; ranks += std::max<int64_t>(1, flags.ranks - 1))
        if (const celer::Status done = BenchModel(model, weights, flags, ranks); !done) {
          fmt::print(stderr, "error: {}\n", done.error().message());
          return 1;
        }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"decode and prefill of random models on a GPU"};
  app.add_option("--model", flags.models, "shapes, as `celer limits --model` knows them")->delimiter(',');
  app.add_option("--weights", flags.weights, "bf16, f16, int8[-gN], int4[-gN], fp8[-gN]")->delimiter(',');
  app.add_option("--prompt", flags.prompts, "prompt tokens")->delimiter(',');
  app.add_option("--batch", flags.batches, "sequences at once")->delimiter(',');
  app.add_option("--tokens", flags.tokens, "new tokens per sequence");
  app.add_option("--chunk", flags.chunk, "tokens of one step at most");
  app.add_flag("--deterministic", flags.deterministic, "results that do not depend on the batch");
  app.add_flag("--ops", flags.ops, "the time of each operator of a decode step");
  app.add_option("--activations", flags.activations, "16bit, fp8, int8");
  app.add_flag("--no-rows", flags.no_rows, "weights are not kept a second time for cuBLASLt");
  app.add_option("--mixed-chunk", flags.mixed_chunk,
                 "tokens of a step in which others wait for their next one; 0: what the limits model says");
  app.add_option("--lora", flags.lora, "the same again with so many random LoRA adapters, in turns");
  app.add_option("--rank", flags.rank, "of each of them");
  app.add_flag("--lora-f32", flags.lora_f32, "their numbers need f32; else bf16 holds them");
  app.add_option("--repeat", flags.repeat, "runs; the median counts");
  app.add_option("--bandwidth", flags.bandwidth,
                 "GB/s that the limit is made of, as `celer probe` measured it");
  app.add_option("--table", flags.table,
                 "append a row of Markdown to this file: celer, limit, ratio, best peer, ratio to it; for "
                 "prompts if there are no more than 2 --tokens, else for decoding");
  app.add_option("--device", flags.device, "cuda or cuda:N");
  app.add_option("--launch", flags.launch, "eager, graph or fused");
  app.add_option("--temperature", flags.sampling.temperature, "0: always the most likely token");
  app.add_option("--top-k", flags.sampling.top_k, "keep the k most likely");
  app.add_option("--top-p", flags.sampling.top_p, "keep the most likely until they hold this probability");
  app.add_option("--repetition-penalty", flags.sampling.repetition_penalty, "1: none");
  app.add_option("--tensor-parallel-size", flags.ranks,
                 "also -tp N: a row for one rank, and one for N on GPUs of their own, or on one with "
                 "CELER_RANKS_SHARE_GPU=1")
      ->check(CLI::Range(1, 8));
  for (int i = 1; i < argc; ++i)  // too long for CLI11's short names
    if (std::string_view(argv[i]) == "-tp") argv[i] = const_cast<char*>("--tensor-parallel-size");
  CLI11_PARSE(app, argc, argv);
  if (flags.ranks > 1) PrepareRanks();
  return Bench(flags);
}
