#include "celer/engine.h"

#include <algorithm>
#include <map>

#include "core/log.h"
#include "core/thread_pool.h"
#include "engine/block_manager.h"
#include "engine/kv_cache.h"
#include "engine/model_runner.h"
#include "engine/scheduler.h"
#include "models/op_profile.h"
#include "models/step_launch.h"
#include "models/step_work.h"

#if CELER_WITH_CUDA
#include "engine/cuda_runner.h"
#endif

namespace celer {
namespace {

constexpr int64_t kDefaultContext = 4096;
constexpr int64_t kScorePrefill = 512;  // tokens of a step that has no rows to score
constexpr int64_t kScoreRows = 64;      // rows of logits that Score() holds at once

Result<DType> ParseKvType(const std::string& text) {
  if (text == "f32") return DType::kF32;
  if (text == "f16") return DType::kF16;
  if (text == "bf16") return DType::kBf16;
  if (text == "int8") return DType::kI8;
  if (text == "fp8") return DType::kFp8E4M3;
  return Error::Invalid("--kv '", text, "' is not one of f32, f16, bf16, int8, fp8");
}

Result<Device> ParseDevice(const std::string& text) {
  if (text == "auto") return CudaDeviceCount() > 0 ? Device::Cuda(0) : Device::Cpu();
  const Result<Device> device = Device::Parse(text);
  if (!device) return Error::Invalid("--device '", text, "' is not one of auto, cpu, cuda, cuda:N");
  if (device->is_cpu()) return device;
#if !CELER_WITH_CUDA
  return Error::Invalid(
      "--device ", text,
      ": this celer was built without CUDA; build it with -DCELER_CUDA=ON, or try --device cpu");
#endif
  if (const int found = CudaDeviceCount(); device->index >= found)
    return Error::Invalid("--device ", text, ": ", found, " CUDA devices can be used here; try --device cpu");
  return device;
}

// How many positions the KV holds.
Result<int64_t> ContextFor(const EngineOptions& options, const DecoderConfig& config) {
  if (options.context < 0 || options.context > config.max_positions)
    return Error::Invalid("--context ", options.context, ": the model has ", config.max_positions,
                          " positions; give 1 to ", config.max_positions, ", or 0 for at most ",
                          kDefaultContext);
  return options.context > 0 ? options.context : std::min(config.max_positions, kDefaultContext);
}

Result<int64_t> CheckSequences(const EngineOptions& options) {
  if (options.sequences < 1 || options.sequences > 65536)
    return Error::Invalid(options.sequences, " sequences: expected 1 to 65536");
  return options.sequences;
}
int64_t BlocksFor(const EngineOptions& options, int64_t context) {
  return options.sequences * ((context + KvCache::kBlockSize - 1) / KvCache::kBlockSize);
}

constexpr std::string_view kRandomPrefix =
    "random:";  // "random:llama-2-7b": a shape without a file, for benchmarks

#if CELER_WITH_CUDA
// The decoder on the GPU; `ready` makes the engine of it and of the context.
Result<std::unique_ptr<Engine>> LoadOnCuda(const EngineOptions& options, Device device,
                                           const WeightOptions& weights, DType kv_type, ThreadPool& pool,
                                           const auto& ready) {
  CudaDecoderOptions cuda{.device = device.index, .weights = weights, .kv = kv_type};
  CELER_ASSIGN(cuda.launch, ParseStepLaunch(options.launch));
  cuda.max_tokens = std::max<int64_t>(options.chunk, kScorePrefill);
  if (options.model.starts_with(kRandomPrefix)) {
    CELER_ASSIGN(const LlmShape shape,
                 FindModelPreset(std::string_view(options.model).substr(kRandomPrefix.size())));
    const DecoderConfig config = FromLlmShape(shape);
    CELER_ASSIGN(const int64_t context, ContextFor(options, config));
    cuda.context = BlocksFor(options, context) * KvCache::kBlockSize;
    CELER_ASSIGN(auto decoder, CudaDecoder::Random(config, cuda));
    return ready(std::move(decoder), context);
  }
  CELER_ASSIGN(const Decoder host, Decoder::Load(options.model, {.pack = false}, pool));
  CELER_ASSIGN(const int64_t context, ContextFor(options, host.config()));
  cuda.context = BlocksFor(options, context) * KvCache::kBlockSize;
  CELER_ASSIGN(auto decoder, CudaDecoder::Make(host, cuda));
  return ready(std::move(decoder), context);
}
#endif

Status CheckTokens(std::span<const int32_t> tokens, int64_t vocab) {
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab)
      return Error::Invalid("the prompt names token ", token, ", but the vocabulary has ", vocab, " tokens");
  return {};
}

}  // namespace

const char* Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "none";
}

struct Engine::Impl {
  Impl(std::unique_ptr<ThreadPool> pool_, int64_t blocks_, const EngineOptions& options)
      : pool(std::move(pool_)),
        blocks(blocks_, KvCache::kBlockSize),
        scheduler(blocks, options.chunk, [this] { return DropOldestKept(); }) {}

  bool DropOldestKept();

  std::vector<Piece> Pieces(std::span<const ScheduledPiece> scheduled) const;
  bool Finish(int64_t id);  // false: it is not being worked on

  // Runs the pieces: logits [rows, vocab], in their order.
  Result<std::span<const float>> Run(std::span<const Piece> pieces);
  // Runs the pieces and chooses a token for each that is complete.
  Result<std::vector<Sampler::Choice>> RunAndChoose(std::span<const ScheduledPiece> scheduled);
#if CELER_WITH_CUDA
  std::unique_ptr<CudaRunner> cuda;
  bool queue_ahead = true;  // not where each kernel is launched by itself
  Result<std::vector<Sampler::Choice>> ChooseOnDevice(std::span<const ScheduledPiece> scheduled);
  Result<std::vector<Sampler::Choice>> Decode(std::span<const ScheduledPiece> scheduled,
                                              std::span<CudaRunner::Decoding> step);
#endif

  std::unique_ptr<ThreadPool> pool;
  std::optional<ModelRunner> runner;  // none when the model is on a GPU
  BlockManager blocks;
  Scheduler scheduler;
  // By age; dropped when others need the room. Each holds a block at least, so there are never more than
  // blocks.
  std::map<int64_t, std::unique_ptr<Sequence>> kept;
  std::vector<TokenEvent> cancelled;  // to be told by the next Step()
  Info info;
  OpProfile profile;
  bool profiling = false;
  std::optional<Error> fault;
  int64_t next_id = 1;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;
const Engine::Info& Engine::info() const {
  return impl_->info;
}
const std::optional<Error>& Engine::fault() const {
  return impl_->fault;
}

Result<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  CELER_ASSIGN(const WeightOptions weights, WeightOptions::Parse(options.weights));
  CELER_ASSIGN(const DType kv_type, ParseKvType(options.kv));
  if (options.threads < 0 || options.threads > 1024)
    return Error::Invalid("--threads ", options.threads, ": expected 1 to 1024, or 0 for all");
  if (options.chunk < 1 || options.chunk > 65536)
    return Error::Invalid("--chunk ", options.chunk, ": expected 1 to 65536 tokens");
  if (options.threads == 0) {
    CELER_ASSIGN([[maybe_unused]] const int from_environment, ThreadsFromEnvironment());
  }
  CELER_ASSIGN([[maybe_unused]] const int64_t sequences, CheckSequences(options));
  CELER_ASSIGN([[maybe_unused]] const StepLaunch launch, ParseStepLaunch(options.launch));
  CELER_ASSIGN(Device device, ParseDevice(options.device));
  auto pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = options.threads});
#if CELER_WITH_CUDA
  if (!device.is_cpu()) {
    const auto ready = [&](std::unique_ptr<CudaDecoder> decoder, int64_t context) -> std::unique_ptr<Engine> {
      Info info;
      const DecoderConfig& config = decoder->config();
      info.architecture = config.architecture;
      info.vocab = config.vocab;
      info.context = context;
      info.max_positions = config.max_positions;
      info.shape = ToLlmShape(config, options.model);
      info.weight_bytes = decoder->active_bytes();
      info.kv_bytes_per_token = KvBytesPerToken(config, kv_type);
      info.bytes_by_format = decoder->bytes_by_format();
      info.threads = pool->size();
      info.device = device.ToString() + " (" + decoder->device_name() + ")";
      auto impl = std::make_unique<Impl>(std::move(pool), BlocksFor(options, context), options);
      impl->cuda = std::make_unique<CudaRunner>(std::move(decoder));
      impl->queue_ahead = launch != StepLaunch::kEager;
      impl->info = std::move(info);
      return std::unique_ptr<Engine>(new Engine(std::move(impl)));
    };
    auto loaded = LoadOnCuda(options, device, weights, kv_type, *pool, ready);
    // "auto" asks for what works: a model that the GPU's kernels do not know runs on the CPU.
    if (loaded || options.device != "auto" || loaded.error().code() != Error::Code::kUnsupported)
      return loaded;
    log::Info("{}; running on the CPU", loaded.error().message());
    device = Device::Cpu();
  }
#endif
  if (options.model.starts_with(kRandomPrefix))
    return Error::Unsupported(options.model,
                              ": weights are made up on a GPU only; write a file with celer synth instead");
  CELER_ASSIGN(Decoder decoder,
               Decoder::Load(options.model, {.weights = weights, .pack_cache = options.pack_cache}, *pool));

  const DecoderConfig& config = decoder.config();
  CELER_ASSIGN(const int64_t context, ContextFor(options, config));
  const int64_t blocks = BlocksFor(options, context);
  if (kv_type == DType::kFp8E4M3)
    return Error::Unsupported("--kv fp8 runs on CUDA only; int8 takes as little on the CPU");
  auto kv = KvCache::Make(config, kv_type, blocks, CpuAllocator());
  if (!kv)
    return kv.error().WithContext("KV cache for " + std::to_string(options.sequences * context) +
                                  " positions (try a smaller --context)");

  Info info;
  info.architecture = config.architecture;
  info.vocab = config.vocab;
  info.context = context;
  info.max_positions = config.max_positions;
  info.shape = ToLlmShape(config, options.model);
  info.weight_bytes = decoder.active_bytes();
  info.kv_bytes_per_token = KvBytesPerToken(config, kv_type);
  info.bytes_by_format = decoder.bytes_by_format();
  info.threads = pool->size();
  info.device = device.ToString();
  auto impl = std::make_unique<Impl>(std::move(pool), blocks, options);
  impl->runner.emplace(std::move(decoder), std::move(*kv));
  impl->info = std::move(info);
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Result<int64_t> Engine::Submit(Request request) {
  const Info& info = impl_->info;
  if (request.prompt.empty()) return Error::Invalid("the prompt has no tokens");
  CELER_RETURN_IF_ERROR(CheckTokens(request.prompt, info.vocab));
  CELER_RETURN_IF_ERROR(Validate(request.sampling, info.vocab));
  if (request.max_tokens < 1)
    return Error::Invalid("max tokens is ", request.max_tokens, ", expected 1 or more");
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt >= info.context)
    return Error::Invalid(
        "the prompt has ", prompt, " tokens and the context holds ", info.context, "; ",
        info.context < info.max_positions ? "raise it with --context" : "the model has no more positions");
  // The last token is never appended to the KV, so one position more than the context holds can be generated.
  request.max_tokens = std::min(request.max_tokens, info.context - prompt + 1);

  const int64_t id = impl_->next_id++;
  auto sequence = std::make_unique<Sequence>(id, std::move(request));
  if (sequence->request.continue_from) {
    if (const auto it = impl_->kept.find(*sequence->request.continue_from); it != impl_->kept.end()) {
      Sequence& old = *it->second;
      int64_t common = 0;
      const int64_t limit =
          std::min(old.computed, prompt - 1);  // at least one token runs: its logits are needed
      while (common < limit &&
             old.tokens[static_cast<size_t>(common)] == sequence->tokens[static_cast<size_t>(common)])
        ++common;
      sequence->block_table = std::move(old.block_table);
      impl_->blocks.Shrink(&sequence->block_table, common);
      sequence->computed = sequence->reused = common;
      impl_->kept.erase(it);
    }
  }
  impl_->scheduler.Add(std::move(sequence));
  return id;
}

bool Engine::HasWork() const {
  return impl_->scheduler.HasWork() || !impl_->cancelled.empty();
}

std::vector<Piece> Engine::Impl::Pieces(std::span<const ScheduledPiece> scheduled) const {
  std::vector<Piece> pieces;
  for (const auto& [sequence, tokens] : scheduled) {
    const bool complete = tokens == sequence->pending();  // else a prefill goes on in the next step
    pieces.push_back(
        {.tokens = std::span(sequence->tokens)
                       .subspan(static_cast<size_t>(sequence->computed), static_cast<size_t>(tokens)),
         .position = sequence->computed,
         .block_table = sequence->block_table,
         .logits = complete ? Piece::Logits::kLast : Piece::Logits::kNone});
  }
  return pieces;
}

std::vector<TokenEvent> Engine::Step() {
  std::vector<TokenEvent> events = std::move(impl_->cancelled);
  impl_->cancelled.clear();

  const std::vector<ScheduledPiece> scheduled = impl_->scheduler.Schedule();
  if (scheduled.empty()) return events;
  const Result<std::vector<Sampler::Choice>> choices = impl_->RunAndChoose(scheduled);
  if (!choices) {
    impl_->fault = choices.error();
    for (const auto& [sequence, tokens] : scheduled) {
      events.push_back({sequence->id, 0, FinishReason::kCancelled, 0, {}});
      impl_->Finish(sequence->id);
    }
    return events;
  }

  size_t row = 0;
  for (const auto& [sequence, tokens] : scheduled) {
    sequence->computed += tokens;
    if (sequence->pending() > 0) continue;
    const Sampler::Choice& choice = (*choices)[row++];
    sequence->tokens.push_back(choice.token);

    TokenEvent event{sequence->id, choice.token, FinishReason::kNone, choice.logprob, choice.top};
    const auto& stops = sequence->request.stop_tokens;
    if (std::find(stops.begin(), stops.end(), choice.token) != stops.end())
      event.finish = FinishReason::kStop;
    else if (sequence->output_count() >= sequence->request.max_tokens)
      event.finish = FinishReason::kLength;
    events.push_back(event);
    if (event.finish != FinishReason::kNone) impl_->Finish(sequence->id);
  }
  return events;
}

std::vector<OperatorWork> Engine::Work(const StepShape& shape) const {
#if CELER_WITH_CUDA
  if (impl_->cuda) return impl_->cuda->decoder().Work(shape);
#endif
  const Decoder& decoder = impl_->runner->decoder();
  return CountStep(decoder.config(), MatricesOf(decoder.weights()), impl_->info.kv_bytes_per_token, shape);
}

void Engine::StartProfile() {
  impl_->profile = {};
  impl_->profiling = true;
  if (impl_->runner) impl_->runner->decoder().set_profile(&impl_->profile);
#if CELER_WITH_CUDA
  if (impl_->cuda) impl_->cuda->decoder().set_profile(&impl_->profile);
#endif
}

void Engine::StopProfile() {
  impl_->profiling = false;
  if (impl_->runner) impl_->runner->decoder().set_profile(nullptr);
#if CELER_WITH_CUDA
  if (impl_->cuda) impl_->cuda->decoder().set_profile(nullptr);
#endif
}

std::vector<OperatorTime> Engine::Profile() const {
  std::vector<OperatorTime> times;
  for (size_t i = 0; i < kOpCount; ++i)
    if (const OpProfile::Entry& entry = impl_->profile.ops[i]; entry.calls > 0)
      times.push_back({Name(static_cast<Op>(i)), entry.calls, entry.seconds});
  return times;
}

Result<std::span<const float>> Engine::Impl::Run(std::span<const Piece> pieces) {
#if CELER_WITH_CUDA
  if (cuda) return cuda->Run(pieces);
#endif
  return runner->Run(pieces);
}

Result<std::vector<Sampler::Choice>> Engine::Impl::RunAndChoose(std::span<const ScheduledPiece> scheduled) {
#if CELER_WITH_CUDA
  const bool on_device = cuda && std::all_of(scheduled.begin(), scheduled.end(), [&](const auto& piece) {
                           return CudaSampler::CanSample(piece.sequence->sampler.params(), info.vocab);
                         });
  if (on_device) return ChooseOnDevice(scheduled);
#endif
  CELER_ASSIGN(const std::span<const float> logits, Run(Pieces(scheduled)));
  std::vector<Sampler::Choice> choices;
  const auto vocab = static_cast<size_t>(info.vocab);
  OpClock clock(profiling ? &profile : nullptr);
  clock.Begin(Op::kSampling);
  for (const auto& [sequence, tokens] : scheduled)
    if (tokens == sequence->pending())
      choices.push_back(sequence->sampler.Next(logits.subspan(choices.size() * vocab, vocab)));
  return choices;
}

#if CELER_WITH_CUDA
Result<std::vector<Sampler::Choice>> Engine::Impl::ChooseOnDevice(std::span<const ScheduledPiece> scheduled) {
  std::vector<CudaRunner::Decoding> step;  // the sequences of which a token is chosen
  bool decoding = static_cast<int64_t>(scheduled.size()) <= CudaDecoder::kMaxDecode;
  for (const auto& [sequence, tokens] : scheduled) {
    decoding = decoding && tokens == 1 && sequence->pending() == 1;
    if (tokens != sequence->pending()) continue;  // a prefill that goes on
    step.push_back({.row = {.id = sequence->id,
                            .params = &sequence->sampler.params(),
                            .tokens = sequence->tokens,
                            .prompt = static_cast<int64_t>(sequence->request.prompt.size()),
                            .position = sequence->computed + tokens - 1},
                    .token = sequence->tokens.back(),
                    .block_table = sequence->block_table});
  }
  std::vector<Sampler::Choice> choices;
  if (decoding) {
    CELER_ASSIGN(choices, Decode(scheduled, step));
  } else {
    std::vector<CudaSampler::Row> rows;
    for (const CudaRunner::Decoding& d : step) rows.push_back(d.row);
    CELER_ASSIGN(choices, cuda->RunAndChoose(Pieces(scheduled), rows));
  }
  size_t row = 0;
  for (const auto& [sequence, tokens] : scheduled)
    if (tokens == sequence->pending()) sequence->sampler.Accept(choices[row++].token);
  return choices;
}

// The device goes on by itself: the step after this one is queued before the host has seen this one's tokens,
// so the device never waits for the host.
Result<std::vector<Sampler::Choice>> Engine::Impl::Decode(std::span<const ScheduledPiece> scheduled,
                                                          std::span<CudaRunner::Decoding> step) {
  bool goes_on = scheduler.waiting() == 0 && queue_ahead && !profiling;
  for (size_t i = 0; i < step.size(); ++i) {
    Sequence& sequence = *scheduled[i].sequence;
    goes_on = goes_on && sequence.output_count() + 1 < sequence.request.max_tokens &&
              blocks.Grow(&sequence.block_table, sequence.computed + 2);
    step[i].block_table = sequence.block_table;
  }
  CELER_RETURN_IF_ERROR(cuda->Start(step));
  if (goes_on) CELER_RETURN_IF_ERROR(cuda->StartNext(step));
  return cuda->Choices(step);
}
#endif

bool Engine::Impl::Finish(int64_t id) {
  std::unique_ptr<Sequence> sequence = scheduler.Remove(id);
  if (!sequence) return false;
  if (sequence->request.keep && sequence->computed > 0)
    kept[id] = std::move(sequence);
  else
    blocks.Shrink(&sequence->block_table, 0);
  return true;
}

bool Engine::Impl::DropOldestKept() {
  if (kept.empty()) return false;
  blocks.Shrink(&kept.begin()->second->block_table, 0);
  kept.erase(kept.begin());
  return true;
}

void Engine::Cancel(int64_t request) {
  if (!impl_->Finish(request)) return;
  TokenEvent event;
  event.request = request;
  event.finish = FinishReason::kCancelled;
  impl_->cancelled.push_back(std::move(event));
}

void Engine::Release(int64_t request) {
  const auto it = impl_->kept.find(request);
  if (it == impl_->kept.end()) return;
  impl_->blocks.Shrink(&it->second->block_table, 0);
  impl_->kept.erase(it);
}

int64_t Engine::KeptRequests() const {
  return static_cast<int64_t>(impl_->kept.size());
}

int64_t Engine::ReusedTokens(int64_t request) const {
  if (const Sequence* sequence = impl_->scheduler.Find(request)) return sequence->reused;
  const auto it = impl_->kept.find(request);
  return it == impl_->kept.end() ? 0 : it->second->reused;
}

Result<std::vector<float>> Engine::Score(std::span<const int32_t> tokens, int64_t first) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (first < 1 || first > count)
    return Error::Invalid("scoring from position ", first, " of ", count, " tokens");
  CELER_RETURN_IF_ERROR(CheckTokens(tokens, impl_->info.vocab));
  std::vector<int32_t> table;
  bool fits = false;
  while (!(fits = impl_->blocks.Grow(&table, count)) && impl_->DropOldestKept()) {
  }
  if (!fits)
    return Error::Invalid(count, " tokens do not fit into a context of ", impl_->info.context,
                          "; raise it with --context");

  const auto vocab = static_cast<size_t>(impl_->info.vocab);
  std::vector<float> out;
  // tokens[i] is predicted by row i - 1, so rows before first - 1 need no logits, and the last row none
  // either.
  for (int64_t begin = 0; begin < count - 1;) {
    const bool scored = begin >= first - 1;
    const int64_t end =
        std::min(scored ? begin + kScoreRows : std::min(begin + kScorePrefill, first - 1), count - 1);
    const Piece piece{.tokens = tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                      .position = begin,
                      .block_table = table,
                      .logits = scored ? Piece::Logits::kAll : Piece::Logits::kNone};
    const Result<std::span<const float>> run = impl_->Run({&piece, 1});
    if (!run) {
      impl_->blocks.Shrink(&table, 0);
      return run.error();
    }
    const std::span<const float> logits = *run;
    for (int64_t i = begin; scored && i < end; ++i) {
      const std::span<const float> row = logits.subspan(static_cast<size_t>(i - begin) * vocab, vocab);
      out.push_back(
          static_cast<float>(row[static_cast<size_t>(tokens[static_cast<size_t>(i + 1)])] - LogSumExp(row)));
    }
    begin = end;
  }
  impl_->blocks.Shrink(&table, 0);
  return out;
}

}  // namespace celer
