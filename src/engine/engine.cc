#include "celer/engine.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/log.h"
#include "core/thread_pool.h"
#include "engine/block_manager.h"
#include "engine/kv_cache.h"
#include "engine/model_runner.h"
#include "engine/scheduler.h"
#include "models/op_profile.h"
#include "models/step_work.h"

namespace celer {
namespace {

constexpr int64_t kDefaultContext = 4096;
constexpr int64_t kScoreRows = 64;  // rows of logits that Score() holds at once

Result<DType> ParseKvType(const std::string& text) {
  if (text == "f32") return DType::kF32;
  if (text == "f16") return DType::kF16;
  if (text == "bf16") return DType::kBf16;
  if (text == "int8") return DType::kI8;
  return Error::Invalid("--kv '", text, "' is not one of f32, f16, bf16, int8");
}

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
  Impl(std::unique_ptr<ThreadPool> pool_, ModelRunner runner_, int64_t blocks_, const EngineOptions& options)
      : pool(std::move(pool_)),
        runner(std::move(runner_)),
        blocks(blocks_, KvCache::kBlockSize),
        scheduler(blocks, options.chunk, [this] { return DropOldestKept(); }) {}

  bool DropOldestKept();

  std::vector<Piece> Pieces(std::span<const ScheduledPiece> scheduled) const;
  bool Finish(int64_t id);  // false: it is not being worked on

  std::unique_ptr<ThreadPool> pool;
  ModelRunner runner;
  BlockManager blocks;
  Scheduler scheduler;
  std::map<int64_t, std::unique_ptr<Sequence>> kept;  // by age; dropped when others need the room
  std::unordered_map<int64_t, int64_t> reused;
  std::vector<TokenEvent> cancelled;  // to be told by the next Step()
  Info info;
  OpProfile profile;
  bool profiling = false;
  int64_t next_id = 1;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;
const Engine::Info& Engine::info() const {
  return impl_->info;
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
  auto pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = options.threads});
  CELER_ASSIGN(Decoder decoder, Decoder::Load(options.model, {weights}, *pool));

  const DecoderConfig& config = decoder.config();
  if (options.context < 0 || options.context > config.max_positions)
    return Error::Invalid("--context ", options.context, ": the model has ", config.max_positions,
                          " positions");
  const int64_t context =
      options.context > 0 ? options.context : std::min(config.max_positions, kDefaultContext);
  if (options.sequences < 1 || options.sequences > 65536)
    return Error::Invalid(options.sequences, " sequences: expected 1 to 65536");
  const int64_t blocks = options.sequences * ((context + KvCache::kBlockSize - 1) / KvCache::kBlockSize);
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
  auto impl = std::make_unique<Impl>(std::move(pool), ModelRunner(std::move(decoder), std::move(*kv)), blocks,
                                     options);
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
  impl_->reused[id] = sequence->reused;
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
  const std::span<const float> logits = impl_->runner.Run(impl_->Pieces(scheduled));

  size_t row = 0;
  const auto vocab = static_cast<size_t>(impl_->info.vocab);
  for (const auto& [sequence, tokens] : scheduled) {
    sequence->computed += tokens;
    if (sequence->pending() > 0) continue;
    OpClock clock(impl_->profiling ? &impl_->profile : nullptr);
    clock.Begin(Op::kSampling);
    const Sampler::Choice choice = sequence->sampler.Next(logits.subspan(row++ * vocab, vocab));
    clock.End();
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
  const Decoder& decoder = impl_->runner.decoder();
  return CountStep(decoder.config(), decoder.weights(), impl_->info.kv_bytes_per_token, shape);
}

void Engine::StartProfile() {
  impl_->profile = {};
  impl_->profiling = true;
  impl_->runner.decoder().set_profile(&impl_->profile);
}

void Engine::StopProfile() {
  impl_->profiling = false;
  impl_->runner.decoder().set_profile(nullptr);
}

std::vector<OperatorTime> Engine::Profile() const {
  std::vector<OperatorTime> times;
  for (size_t i = 0; i < kOpCount; ++i)
    if (const OpProfile::Entry& entry = impl_->profile.ops[i]; entry.calls > 0)
      times.push_back({Name(static_cast<Op>(i)), entry.calls, entry.seconds});
  return times;
}

bool Engine::Impl::Finish(int64_t id) {
  std::unique_ptr<Sequence> sequence = scheduler.Remove(id);
  if (!sequence) return false;
  if (sequence->request.keep) {
    kept[id] = std::move(sequence);
  } else {
    blocks.Shrink(&sequence->block_table, 0);
    reused.erase(id);
  }
  return true;
}

bool Engine::Impl::DropOldestKept() {
  if (kept.empty()) return false;
  blocks.Shrink(&kept.begin()->second->block_table, 0);
  reused.erase(kept.begin()->first);
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
  impl_->reused.erase(request);
}

int64_t Engine::ReusedTokens(int64_t request) const {
  const auto it = impl_->reused.find(request);
  return it == impl_->reused.end() ? 0 : it->second;
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
    const int64_t end = std::min(scored ? begin + kScoreRows : std::min(begin + 512, first - 1), count - 1);
    const Piece piece{.tokens = tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                      .position = begin,
                      .block_table = table,
                      .logits = scored ? Piece::Logits::kAll : Piece::Logits::kNone};
    const std::span<const float> logits = impl_->runner.Run({&piece, 1});
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
