#include "loadtest/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "device/thread_pool.h"
#include "engine/loop/engine_internals.h"
#include "hub/model_path.h"
#include "limits/quantity.h"
#include "loadtest/replay.h"
#include "models/config/presets.h"
#include "models/kv_budget.h"
#include "models/load/model.h"
#include "models/recurrent_state.h"

namespace celer::cli {
namespace {

constexpr double kKvShare = 0.9;
// Between a device and its host, where the machine does not say: a PCIe 4 slot of 16 lanes.
constexpr double kLinkBytesPerS = 25e9;

double KvBits(KvType type, int64_t head_dim) {
  switch (type) {
    case KvType::kF32:
      return 32;
    case KvType::kF16:
    case KvType::kBf16:
      return 16;
    case KvType::kInt8:
      return 8 + 32.0 / static_cast<double>(head_dim);  // a scale per head and token
    case KvType::kFp8:
      return 8;
    case KvType::kInt8Channel:
      return 9;  // a bf16 scale to 16 values
    case KvType::kInt4:
      return 5;  // a scale and a minimum to 32 values
  }
  return 16;
}

SliceShape ShapeOf(const Slice& slice) {
  return {.position = slice.position, .tokens = slice.count(), .rows = slice.row_count()};
}

SimulatedEngine Make(SimulatedRunner::Options options, StepSeconds seconds, const Machine& machine,
                     const Efficiency& efficiency, const EngineOptions& engine_options) {
  options.verify = false;
  options.step_seconds = [seconds = std::move(seconds),
                          shapes = std::vector<SliceShape>()](std::span<const Slice> slices) mutable {
    shapes.clear();
    for (const Slice& slice : slices) shapes.push_back(ShapeOf(slice));
    return seconds(shapes);
  };
  const double block = static_cast<double>(options.info.kv_bytes_per_token * kKvBlockTokens);
  const double copy = machine.copy_bytes_per_s > 0 ? machine.copy_bytes_per_s : machine.read_bytes_per_s;
  options.copy_block_s = 2 * block / (copy * efficiency.read);  // read and written
  options.swap_block_s = block / std::min(kLinkBytesPerS, copy / 2);
  auto runner = std::make_unique<SimulatedRunner>(std::move(options));
  SimulatedEngine made{.engine = nullptr, .runner = runner.get()};
  made.engine = EngineInternals::Make(std::move(runner), engine_options);
  return made;
}

StepSeconds SecondsOf(const StepCost& cost, const Machine& machine, const Efficiency& efficiency,
                      std::span<const MeasuredStep> measured = {}) {
  StepTime time(cost, machine, efficiency);
  time.Correct(measured);
  return [time = std::move(time)](std::span<const SliceShape> slices) { return time.Seconds(slices); };
}

SimulatedRunner::Options RunnerOptions(const DecoderConfig& config, StepCost::Count count) {
  SimulatedRunner::Options options;
  options.model.vocab = config.vocab;
  options.info.config = config;
  options.work = std::move(count);
  return options;
}

// The tokens of what an engine computes next do not matter for its speed, but no two prompts may be alike.
std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab, uint64_t* state) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<int32_t>((*state >> 33) % static_cast<uint64_t>(vocab));
  }
  return tokens;
}

double TimeStep(Engine& engine, std::vector<TokenEvent>* events) {
  const auto start = std::chrono::steady_clock::now();
  *events = engine.Step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Status CheckEvents(const Engine& engine, const std::vector<TokenEvent>& events) {
  if (engine.fault()) return *engine.fault();
  for (const TokenEvent& event : events)
    if (event.finish == FinishReason::kError || event.finish == FinishReason::kRefused)
      return Error::Device("measuring a step: ", event.error);
  return {};
}

Status Drain(Engine& engine) {
  while (engine.HasWork()) {
    std::vector<TokenEvent> events = engine.Step();
    CELER_RETURN_IF_ERROR(CheckEvents(engine, events));
  }
  return {};
}

// A prompt that is one step.
Result<MeasuredStep> MeasurePrefill(Engine& engine, int64_t prompt, uint64_t* random) {
  constexpr int kRepeat = 5;
  std::vector<double> seconds;
  for (int i = 0; i < kRepeat; ++i) {
    CELER_RETURN_IF_ERROR(
        engine.Submit({.prompt = RandomTokens(prompt, engine.info().vocab, random), .max_tokens = 1}));
    std::vector<TokenEvent> events;
    double sum = 0;
    while (engine.HasWork()) {
      sum += TimeStep(engine, &events);
      CELER_RETURN_IF_ERROR(CheckEvents(engine, events));
    }
    seconds.push_back(sum);
  }
  return MeasuredStep{.slices = {{.position = 0, .tokens = prompt}}, .seconds = Percentile(seconds, 0.5)};
}

// What follows the first `first` tokens of a prompt, which are a step of their own.
Result<MeasuredStep> MeasurePiece(Engine& engine, int64_t first, int64_t tokens, uint64_t* random) {
  constexpr int kRepeat = 3;
  std::vector<double> seconds;
  for (int i = 0; i < kRepeat; ++i) {
    CELER_RETURN_IF_ERROR(engine.Submit(
        {.prompt = RandomTokens(first + tokens, engine.info().vocab, random), .max_tokens = 1}));
    std::vector<TokenEvent> events;
    while (engine.HasWork()) {
      const int64_t computed = engine.stats().computed_tokens;
      const double one = TimeStep(engine, &events);
      CELER_RETURN_IF_ERROR(CheckEvents(engine, events));
      if (engine.stats().computed_tokens - computed == tokens) seconds.push_back(one);
    }
  }
  if (seconds.empty()) return MeasuredStep();
  return MeasuredStep{.slices = {{.position = first, .tokens = tokens}}, .seconds = Percentile(seconds, 0.5)};
}

// Sequences that all decode, after about `depth` tokens.
class Decoding {
 public:
  static Result<Decoding> Start(Engine& engine, int64_t batch, int64_t depth, uint64_t* random) {
    Decoding decoding(engine, depth);
    for (int64_t i = 0; i < batch; ++i) {
      CELER_ASSIGN(const int64_t id,
                   engine.Submit({.prompt = RandomTokens(depth, engine.info().vocab, random),
                                  .max_tokens = engine.info().context - depth}));
      decoding.tokens_[id] = 0;
    }
    const auto began = [](const auto& entry) { return entry.second > 1; };
    while (engine.HasWork() && !std::all_of(decoding.tokens_.begin(), decoding.tokens_.end(), began))
      CELER_RETURN_IF_ERROR(decoding.Step());
    return decoding;
  }

  // Returns what it took.
  Result<double> Step() {
    std::vector<TokenEvent> events;
    const double seconds = TimeStep(engine_, &events);
    CELER_RETURN_IF_ERROR(CheckEvents(engine_, events));
    for (const TokenEvent& event : events) {
      const auto it = tokens_.find(event.request);
      if (it != tokens_.end()) it->second += event.token != TokenEvent::kNoToken;
    }
    return seconds;
  }
  // Of a step `ahead` steps from now.
  std::vector<SliceShape> Slices(int64_t ahead) const {
    std::vector<SliceShape> slices;
    for (const auto& [id, count] : tokens_) slices.push_back({.position = depth_ + count + ahead - 1});
    return slices;
  }
  Status End() {
    for (const auto& [id, count] : tokens_) engine_.Cancel(id);
    return Drain(engine_);
  }

 private:
  Decoding(Engine& engine, int64_t depth) : engine_(engine), depth_(depth) {}

  Engine& engine_;
  int64_t depth_;
  std::map<int64_t, int64_t> tokens_;  // that came, by request
};

// Answers of `batch` sequences at about `depth`.
Result<MeasuredStep> MeasureDecode(Engine& engine, int64_t batch, int64_t depth, uint64_t* random) {
  constexpr int64_t kSteps = 12;
  CELER_ASSIGN(Decoding decoding, Decoding::Start(engine, batch, depth, random));
  MeasuredStep measured{.slices = decoding.Slices(kSteps / 2)};
  std::vector<double> seconds;
  for (int64_t i = 0; i < kSteps && engine.HasWork(); ++i) {
    CELER_ASSIGN(const double one, decoding.Step());
    seconds.push_back(one);
  }
  measured.seconds = Percentile(seconds, 0.5);
  CELER_RETURN_IF_ERROR(decoding.End());
  return measured;
}

// The same with a prompt in the step. Nothing is measured where the engine cuts the prompt.
Result<MeasuredStep> MeasureMixed(Engine& engine, int64_t batch, int64_t depth, int64_t prompt,
                                  uint64_t* random) {
  constexpr int64_t kRepeat = 5, kMostSteps = 8;
  CELER_ASSIGN(Decoding decoding, Decoding::Start(engine, batch, depth, random));
  MeasuredStep measured;
  std::vector<double> seconds;
  for (int64_t i = 0; i < kRepeat; ++i) {
    CELER_RETURN_IF_ERROR(
        engine.Submit({.prompt = RandomTokens(prompt, engine.info().vocab, random), .max_tokens = 1}));
    // A step that was queued before the prompt came has none of it.
    for (int64_t steps = 0; steps < kMostSteps; ++steps) {
      const std::vector<SliceShape> slices = decoding.Slices(0);
      const int64_t computed = engine.stats().computed_tokens;
      CELER_ASSIGN(const double one, decoding.Step());
      if (engine.stats().computed_tokens - computed != batch + prompt) continue;
      measured.slices = slices;
      seconds.push_back(one);
      break;
    }
  }
  CELER_RETURN_IF_ERROR(decoding.End());
  if (seconds.empty()) return MeasuredStep();
  measured.slices.push_back({.position = 0, .tokens = prompt});
  measured.seconds = Percentile(seconds, 0.5);
  return measured;
}

}  // namespace

Result<ModelSizes> LoadModelSizes(const std::string& model, const WeightOptions& weights) {
  if (const auto preset = FindConfigPreset(model))
    return ModelSizes{.config = *preset, .matrices = MatricesOf(*preset, weights)};
  const auto path = ResolveModelPath(model);
  if (!path) return path.error().WithContext(model + " is no name of celer limits --list, and as a file");
  if (path->extension() == ".json") {  // a configuration without weights
    CELER_ASSIGN(const DecoderConfig config, LoadDecoderConfig(*path));
    return ModelSizes{.config = config, .matrices = MatricesOf(config, weights)};
  }
  ThreadPool pool;
  CELER_ASSIGN(const Model loaded,
               Model::Load(*path, {.weights = weights, .pack = false, .pack_cache = {}}, pool));
  return ModelSizes{.config = loaded.config(), .matrices = MatricesOf(loaded.weights())};
}

CostedModel CostModel(const ModelSizes& sizes, KvType kv_type) {
  const DecoderConfig& config = sizes.config;
  const LlmShape shape = ToLlmShape(config, "model");
  const auto kv = static_cast<int64_t>(std::llround(
      KvBytesPerToken(shape, LlmSetup{.kv_bits = KvBits(kv_type, shape.head_dim), .compute = {}})));
  const auto shared = std::make_shared<const ModelSizes>(sizes);
  const int64_t embedding = config.tied_embeddings ? 0 : config.vocab * sizes.matrices.embedding_row_bytes;
  return CostedModel{.config = config,
                     .cost = StepCost(config,
                                      [shared, kv](const StepShape& s) {
                                        return CountStep(shared->config, shared->matrices, kv, s);
                                      }),
                     .resident_bytes = BytesOf(sizes.matrices) + embedding,
                     .kv_bytes_per_token = kv};
}

Result<CostedModel> LoadCostedModel(const std::string& model, const EngineOptions& options) {
  CELER_ASSIGN(const ModelSizes sizes, LoadModelSizes(model, options.weights));
  return CostModel(sizes, options.kv);
}

Result<SimulatedEngine> MakeSimulatedEngine(const CostedModel& model, const Machine& machine,
                                            const Efficiency& efficiency, const EngineOptions& options,
                                            StepSeconds seconds, bool runs_ahead) {
  SimulatedRunner::Options runner =
      RunnerOptions(model.config, [cost = model.cost](const StepShape& s) { return cost.OfShape(s); });
  runner.runs_ahead = runs_ahead;
  const int64_t block = model.kv_bytes_per_token * kKvBlockTokens;
  const auto room = static_cast<int64_t>(machine.memory_bytes) - model.resident_bytes;
  if (room <= 0)
    return Error::OutOfMemory("the weights take ", FormatBytes(static_cast<double>(model.resident_bytes)),
                              " and ", machine.name, " has ", FormatBytes(machine.memory_bytes),
                              "; try --weights int8 or int4, or another machine");
  const auto plan = PlanWithin({.bytes = options.kv_memory.bytes,
                                .share = options.kv_memory.share,
                                .context = options.context,
                                .sequences = options.sequences},
                               room, kKvShare, block, StateBytes(model.config.recurrent));
  if (!plan) return plan.error().WithContext(machine.name);
  runner.info.kv_blocks = plan->blocks;
  runner.info.state_slots = plan->states;
  runner.info.kv_host_blocks =
      std::min<int64_t>(options.kv_host_memory / block, std::numeric_limits<int32_t>::max());
  runner.info.context = options.context;
  runner.info.kv_bytes_per_token = model.kv_bytes_per_token;
  runner.info.device = "simulated " + machine.name;
  double weights = model.cost.Logits(1).bytes;
  for (const OperatorWork& work : model.cost.Dense(1)) weights += work.bytes;
  runner.info.weight_bytes = static_cast<int64_t>(weights);
  if (!seconds) seconds = SecondsOf(model.cost, machine, efficiency);
  return Make(std::move(runner), std::move(seconds), machine, efficiency, options);
}

SimulatedEngine SimulateEngine(const Engine& engine, const DecoderConfig& config, const Machine& machine,
                               const Efficiency& efficiency, const EngineOptions& options,
                               std::span<const MeasuredStep> measured) {
  const Engine::Info& info = engine.info();
  const auto count = [&engine](const StepShape& s) { return engine.Work(s); };
  SimulatedRunner::Options runner = RunnerOptions(config, count);
  runner.info.kv_blocks = info.kv_tokens / kKvBlockTokens;
  runner.info.kv_host_blocks = engine.stats().kv_host_blocks;
  runner.info.context = info.context;
  runner.info.kv_bytes_per_token = info.kv_bytes_per_token;
  runner.info.weight_bytes = info.weight_bytes;
  runner.info.bytes_by_format = info.bytes_by_format;
  runner.info.threads = info.threads;
  runner.info.device = "simulated " + info.device;
  runner.runs_ahead = !info.device.starts_with("cpu");
  return Make(std::move(runner), SecondsOf(StepCost(config, count), machine, efficiency, measured), machine,
              efficiency, options);
}

Status WarmUp(Engine& engine) {
  uint64_t random = 0;
  const int64_t prompt = std::min<int64_t>(16, engine.info().context - 1);
  CELER_RETURN_IF_ERROR(MeasurePrefill(engine, prompt, &random));
  return {};
}

Result<std::vector<MeasuredStep>> MeasureSteps(Engine& engine, const EngineOptions& options) {
  const Engine::Info& info = engine.info();
  const bool cuda = !info.device.starts_with("cpu");
  const int64_t most_prompt = std::min(options.chunk, info.context - 1);
  uint64_t random = 1;
  std::vector<MeasuredStep> steps;
  const auto add = [&steps](MeasuredStep step) {
    if (step.seconds > 0) steps.push_back(std::move(step));
  };
  constexpr int64_t kSpare = 64;  // tokens that a measured answer may have
  const auto room = [&](int64_t batch, int64_t depth, int64_t prompt) {
    return depth + kSpare <= info.context && batch * (depth + kSpare) + prompt <= info.kv_tokens &&
           batch + prompt <= options.chunk;
  };
  for (const int64_t prompt : {8, 32, 64, 128, 256, 512, 1024, 2048}) {
    if (prompt > most_prompt) continue;
    CELER_ASSIGN(MeasuredStep step, MeasurePrefill(engine, prompt, &random));
    add(std::move(step));
  }
  for (const int64_t piece : {most_prompt / 8, most_prompt}) {
    if (piece < 1 || options.chunk + piece >= info.context) continue;
    CELER_ASSIGN(MeasuredStep step, MeasurePiece(engine, options.chunk, piece, &random));
    add(std::move(step));
  }
  struct Shape {
    int64_t batch, depth, prompt = 0;
  };
  std::vector<Shape> shapes = {{1, 16},       {1, 1024},     {2, 16},      {2, 512},     {3, 16},
                               {4, 16},       {4, 512},      {6, 16},      {8, 16},      {8, 512},
                               {12, 128},     {16, 16},      {16, 256},    {1, 128, 32}, {1, 128, 256},
                               {3, 128, 128}, {4, 128, 480}, {8, 128, 64}, {8, 128, 256}};
  if (cuda)
    shapes.insert(
        shapes.end(),
        {{32, 512}, {64, 512}, {128, 512}, {4, 512, 1024}, {16, 512, 512}, {16, 512, 1800}, {64, 512, 1024}});
  // Beyond kMaxKeys of the kernel that takes whole steps of few sequences, others run.
  if (cuda) shapes.insert(shapes.end(), {{1, 2560}, {4, 2560}, {8, 2560}, {16, 2560}, {40, 2560}});
  for (const auto& [batch, depth, prompt] : shapes) {
    if (!room(batch, depth, prompt)) continue;
    CELER_ASSIGN(MeasuredStep step, prompt > 0 ? MeasureMixed(engine, batch, depth, prompt, &random)
                                               : MeasureDecode(engine, batch, depth, &random));
    add(std::move(step));
  }
  if (steps.empty())
    return Error::Invalid("a `context` of ", info.context, " tokens and a `chunk` of ", options.chunk,
                          " leave no step to be timed; the smallest has a prompt of 8 tokens");
  return steps;
}

std::vector<double> FitErrors(const StepTime& time, const std::vector<MeasuredStep>& steps) {
  std::vector<double> errors;
  for (const MeasuredStep& step : steps)
    errors.push_back(std::abs(time.Seconds(step.slices) / step.seconds - 1));
  return errors;
}

}  // namespace celer::cli
