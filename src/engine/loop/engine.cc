#include "celer/engine.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "engine/cost/step_budget.h"
#include "engine/loop/adapters.h"
#include "engine/loop/check_request.h"
#include "engine/loop/engine_impl.h"
#include "engine/loop/engine_internals.h"
#include "engine/loop/replicas.h"
#include "engine/runners/make_runner.h"
#include "models/config/decoder_config.h"

namespace celer {
namespace {

// Placeholder in a slice for the token that the step before it samples.
constexpr int32_t kNotKnownYet[] = {Slice::kChosenBefore};
// Bandwidth assumed for swapping blocks to the host and back: below that of memories and buses, so that
// swapping is chosen only where it is clearly cheaper than recomputing.
constexpr double kSwapBytesPerSecond = 4e9;
constexpr int64_t kPromptStep = 32;  // a step of so many tokens tells what a prompt's token costs

}  // namespace

Sequence::Sequence(int64_t id_, const Request& request, int answer_)
    : id(id_),
      answer(answer_),
      tokens(request.prompt),
      prompt_count(static_cast<int64_t>(request.prompt.size())),
      sampler(
          [&] {
            SamplingParams params = request.sampling;
            params.seed += static_cast<uint64_t>(answer);
            if (request.best_of > request.n) params.logprobs = std::max(params.logprobs, 0);
            return params;
          }(),
          request.prompt) {
  tokens.insert(tokens.end(), request.resumed.begin(), request.resumed.end());
  for (const int32_t token : request.resumed) sampler.Accept(token);  // before the mask, which has them
  sampler.Forbid(request.stop_tokens, request.min_tokens);
  if (request.mask) sampler.set_mask(request.mask->Clone());
}

Engine::Impl::Impl(std::unique_ptr<Runner> runner_, const EngineOptions& options,
                   std::unique_ptr<Speculator> speculator_)
    : runner(std::move(runner_)),
      blocks(runner->info().kv_blocks, runner->info().kv_host_blocks),
      states(runner->info().state_slots),
      scheduler(blocks, {.step = options.chunk, .mixed = options.mixed_chunk}, options.preemption,
                [this](int64_t tokens) {
                  const double bytes = 2.0 * static_cast<double>(tokens * info.kv_bytes_per_token);
                  return bytes / kSwapBytesPerSecond < token_seconds * static_cast<double>(tokens);
                }),
      speculator(std::move(speculator_)),
      prefix_cache(options.prefix_cache) {
  scheduler.set_states(&states);
  if (runner->info().config.layers > 0) meter.emplace(*runner);
}

void Engine::Impl::StartTrace(StepTrace& to) {
  trace = &to;
  // A GPU's operators cannot be timed without stalling it.
  if (runner->info().device != "cpu") return;
  profile.spans = trace->operators();
  runner->set_profile(&profile);
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() {
  impl_->adapters->impl().Detach();  // the check asks the runner
}
const std::shared_ptr<Adapters>& Engine::adapters() const {
  return impl_->adapters;
}
const Engine::Info& Engine::info() const {
  return impl_->info;
}
const std::optional<Error>& Engine::fault() const {
  return impl_->fault;
}

Result<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  EngineShare alone;
  return EngineInternals::Load(options, &alone);
}

Result<std::unique_ptr<Engine>> EngineInternals::Load(const EngineOptions& options, EngineShare* share) {
  // The draft model first: the KV of the target may take all the memory that is left.
  CELER_ASSIGN(std::unique_ptr<Speculator> speculator, Speculator::Load(options, &share->draft));
  // Adapters, too.
  std::shared_ptr<Adapters>& adapters = share->adapters;
  if (!adapters) {
    adapters = MakeAdapters(options.model, options.lora);
    CELER_RETURN_IF_ERROR(adapters->impl().LoadFirst());
  }
  EngineOptions chosen = options;
  if (chosen.lora.memory == 0) chosen.lora.memory = adapters->impl().DeviceBytes();
  CELER_ASSIGN(std::unique_ptr<Runner> runner, MakeRunner(chosen, 0, &share->target));
  CELER_RETURN_IF_ERROR(
      adapters->impl().Attach([of = runner.get()](const LoraMix& mix) { return of->CheckLora(mix); }));
  if (options.speculation.kind != Speculation::Kind::kNone && runner->info().state_slots > 0 &&
      !runner->info().drafts_states)
    return Error::Unsupported(
        "`speculation` ", options.speculation.ToString(), ": the model '", runner->info().config.architecture,
        "' has recurrent layers, whose state does not go back behind a rejected draft on ",
        runner->info().device, "; use `speculation` off, or `device` cpu");
  if (DraftsWithPredictor(options.speculation)) speculator->UsePredictor(runner->TakePredictor());
  if (speculator) CELER_RETURN_IF_ERROR(speculator->SetTarget(runner->info()));
  if (chosen.mixed_chunk == 0) chosen.mixed_chunk = MixedChunk(*runner, options.chunk);
  return Make(std::move(runner), chosen, std::move(speculator), adapters);
}

std::unique_ptr<Engine> EngineInternals::Make(std::unique_ptr<Runner> runner, const EngineOptions& options,
                                              std::unique_ptr<Speculator> speculator,
                                              std::shared_ptr<Adapters> adapters) {
  if (!speculator && options.speculation.kind == Speculation::Kind::kLookup)
    speculator = std::make_unique<Speculator>(Speculator::OptionsFor(options));
  auto impl = std::make_unique<Engine::Impl>(std::move(runner), options, std::move(speculator));
  const Runner::Info& device = impl->runner->info();
  const DecoderConfig& config = device.config;
  impl->info = {.architecture = config.architecture,
                .vocab = config.vocab,
                .context = device.context,
                .kv_tokens = device.kv_blocks * kKvBlockTokens,
                .max_positions = config.max_positions,
                .shape = ToLlmShape(config, options.model),
                .weight_bytes = device.weight_bytes,
                .kv_bytes_per_token = device.kv_bytes_per_token,
                .bytes_by_format = device.bytes_by_format,
                .threads = device.threads,
                .device = device.device,
                .parts = {},
                .crossings = device.crossings,
                .predicted_gain = impl->speculator ? impl->speculator->predicted_gain() : 0};
  for (const Runner::Info::Part& part : device.parts)
    impl->info.parts.push_back({part.device, part.weight_bytes});
  impl->adapters = std::move(adapters);
  if (!impl->adapters) {
    impl->adapters = MakeAdapters(options.model, {});
    const Status attached = impl->adapters->impl().Attach(
        [of = impl->runner.get()](const LoraMix& mix) { return of->CheckLora(mix); });
    CELER_CHECK(attached);  // there is none to refuse
  }
  return std::make_unique<Engine>(std::move(impl));
}

Result<int64_t> Engine::Submit(Request request) {
  return impl_->Submit(std::move(request), nullptr);
}

Result<int64_t> Engine::Impl::Submit(Request request, Scoring* scoring) {
  if (fault) return *fault;
  CELER_RETURN_IF_ERROR(CheckRequest(request, info, scoring != nullptr));
  if (!request.lora) request.lora = adapters->Standing();
  if (*request.lora) CELER_RETURN_IF_ERROR(runner->CheckLora(**request.lora));
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  // The last token is never appended to the KV, so one position more than the context holds can be generated.
  request.max_tokens = std::min(request.max_tokens, info.context - prompt + 1);
  request.min_tokens = std::min(request.min_tokens, request.max_tokens);

  const int64_t id = next_id++;
  ++counts.requests;
  std::string why = NeverFits(request, info);
  if (why.empty() && states.any())
    why = NeverFitsWithStates(request, info, states.slots() - states.most_swapped());
  if (!why.empty()) {
    ++counts.finished;
    for (int i = 0; i < request.n; ++i)
      pending_events.push_back({.request = id,
                                .answer = i,
                                .finish = FinishReason::kRefused,
                                .last = i == request.n - 1,
                                .error = why});
    return id;
  }
  auto group = std::make_unique<Group>();
  group->id = id;
  group->order = {.priority = request.priority, .arrival = id};
  group->answers = group->open = std::max(request.n, request.best_of);
  group->holds_back = request.best_of > request.n || request.beam.width > 0;
  if (request.beam.width > 0) group->beams = std::make_unique<Beams>(request);
  auto sequence = std::make_unique<Sequence>(next_sequence++, request, 0);
  sequence->group = group.get();
  sequence->scoring = scoring;
  sequence->recurrent = states.any();
  if (request.prompt_logprobs >= 0 && prompt > 1) {
    group->prompt_scoring = std::make_unique<Scoring>(
        Scoring{.visit =
                    [group = group.get(), alternatives = request.prompt_logprobs](
                        int64_t i, std::span<const float> row) {
                      group->prompt_scores.push_back(LogprobsOf(row, group->request.prompt[i], alternatives));
                    },
                .only = false});
    sequence->scoring = group->prompt_scoring.get();
  }
  if (prefix_cache && !sequence->scoring && !NeedsAllRows(request))
    sequence->root = sequence->content = TakeRoot(request);
  if (request.deadline) deadlines.emplace(*request.deadline, id);
  group->request = std::move(request);
  if (trace && !scoring) trace->Submitted(id, prompt, group->request.max_tokens);
  scheduler.Add(sequence.get());
  group->sequences.push_back(std::move(sequence));
  Group& added = *(groups[id] = std::move(group));
  // Its first mask is ready when the prompt is, unless that is short.
  if (const Status prepared = PrepareMask(*added.sequences[0]); !prepared)
    EndGroup(added, FinishReason::kConstraint, prepared.error().message(), &pending_events);
  return id;
}

bool Engine::HasWork() const {
  return (!impl_->fault && impl_->scheduler.HasWork()) || !impl_->pending_events.empty();
}

std::vector<TokenEvent> Engine::Step() {
  StepTrace::Step traced(impl_->trace);
  const KvEventLog::Step logged(impl_->kv_log.get(), impl_->blocks.cache());
  impl_->ExpireDeadlines(Impl::Clock::now());
  std::vector<TokenEvent> events = std::exchange(impl_->pending_events, {});
  if (impl_->fault || !impl_->scheduler.HasWork()) {
    traced.Idle(events);
    return events;
  }
  impl_->ForkWithStates();
  impl_->PrepareMasks(&events);
  if (const Status proposed = impl_->Propose(); !proposed) {
    impl_->Stop(proposed.error(), &events);
    return events;
  }
  const StepPlan plan = impl_->NextStepPlan();
  traced.Scheduled();
  const Impl::Clock::time_point begin = Impl::Clock::now();
  for (const Scheduled& part : plan.now)
    if (Group& group = *part.sequence->group; group.begun == Impl::Clock::time_point()) group.begun = begin;
  const int64_t rows = Speculator::RowsOf(plan.now);
  if (plan.never_fits) impl_->Refuse(*plan.never_fits, &events);
  const Result<StepOutput> output = impl_->Run(plan);
  traced.Ran();
  if (output)
    impl_->Commit(plan.now, *output, &events);
  else
    impl_->Stop(output.error(), &events);
  if (plan.now.empty()) impl_->WaitForMask();
  const Impl::Clock::time_point end = Impl::Clock::now();
  if (impl_->speculator) impl_->speculator->Ran(rows, std::chrono::duration<double>(end - begin).count());
  impl_->counts.busy_seconds +=
      std::chrono::duration<double>(end - impl_->busy_since.value_or(begin)).count();
  impl_->busy_since.reset();
  if (impl_->scheduler.HasWork()) impl_->busy_since = end;
  if (traced.on()) traced.Committed(stats(), events);
  return events;
}

void Engine::Impl::ExpireDeadlines(Clock::time_point now) {
  while (!deadlines.empty() && deadlines.begin()->first <= now) {
    const auto group = groups.find(deadlines.begin()->second);
    deadlines.erase(deadlines.begin());
    if (group != groups.end()) EndGroup(*group->second, FinishReason::kDeadline, "", &pending_events);
  }
}

std::vector<Slice> Engine::Impl::SlicesOf(std::span<const Scheduled> scheduled) {
  std::vector<Slice> slices;
  slices.reserve(scheduled.size());
  const bool keeps_hidden = speculator && speculator->reads_hidden();
  size_t drafted = 0;
  for (const auto& [sequence, tokens] : scheduled)
    drafted += tokens > sequence->pending() ? static_cast<size_t>(tokens) : 0;
  with_drafts.clear();
  with_drafts.reserve(drafted);  // the slices point into it
  for (const auto& [sequence, tokens] : scheduled) {
    const bool complete = tokens == sequence->pending();  // else a prompt goes on in the next step
    const bool drafts = tokens > sequence->pending();
    std::span<const int32_t> run;
    if (drafts) {
      const int64_t certain = sequence->pending();
      with_drafts.insert(with_drafts.end(), sequence->tokens.end() - certain, sequence->tokens.end());
      with_drafts.insert(with_drafts.end(), sequence->draft.begin(),
                         sequence->draft.begin() + (tokens - certain));
      run = std::span(with_drafts).last(static_cast<size_t>(tokens));
    } else {
      run = std::span(sequence->tokens)
                .subspan(static_cast<size_t>(sequence->computed), static_cast<size_t>(tokens));
    }
    Slice slice{.sequence = sequence->id,
                .tokens = run,
                .position = sequence->computed,
                .state = sequence->state,
                .draft_state = sequence->draft_state,
                .certain = sequence->draft_state == StateSlots::kNone ? 0 : sequence->pending(),
                .block_table = sequence->block_table,
                .rows = Slice::Rows::kNone,
                .prompt_length = sequence->prompt_count,
                .history = sequence->tokens,
                .lora = *sequence->group->request.lora,
                .keeps_hidden = keeps_hidden && sequence->speculates()};
    const Pooling pooling = sequence->group->request.pooling;
    if (drafts || sequence->scores_rows()) {
      slice.rows = Slice::Rows::kAll;
    } else if (pooling == Pooling::kMean) {
      slice.rows = Slice::Rows::kHidden;
    } else if (pooling == Pooling::kLast) {
      if (complete) slice.rows = Slice::Rows::kLastHidden;
    } else if (complete && sequence->group->beams) {
      slice.rows = Slice::Rows::kLast;
    } else if (complete && !sequence->only_scored()) {
      slice.rows = Slice::Rows::kSample;
      slice.sampler = &sequence->sampler;
    }
    slices.push_back(slice);
  }
  return slices;
}

StepPlan Engine::Impl::NextStepPlan() {
  StepPlan plan;
  for (const auto& [sequence, position] : ahead)
    if (!sequence->ended && sequence->computed == position) plan.now.push_back({sequence, 1});
  if (!plan.now.empty()) return plan;
  DropAhead();
  plan = scheduler.Schedule();
  TakeDraftStates(&plan);
  return plan;
}

void Engine::Impl::DropAhead() {
  runner->DropQueued();
  ahead.clear();
  ended.clear();
}

Result<StepOutput> Engine::Impl::Run(const StepPlan& plan) {
  std::vector<Slice> slices = SlicesOf(plan.now);
  const auto queued = std::exchange(ahead, {});
  if (queued.empty()) {
    CELER_RETURN_IF_ERROR(Move(std::exchange(state_copies, {})));
    CELER_RETURN_IF_ERROR(Move(plan.moves));
    if (plan.now.empty())
      return StepOutput();  // beams that were swapped in, and run together in the next step
    CELER_RETURN_IF_ERROR(runner->Queue(slices));
  }
  if (meter) meter->Count(slices, &counts);
  CELER_RETURN_IF_ERROR(QueueNext(plan.now, std::move(slices)));
  const Clock::time_point begin = Clock::now();
  Result<StepOutput> output = runner->Take();
  ended.clear();
  // Tokens sampled for sequences that had ended are discarded.
  if (output && queued.size() > plan.now.size()) {
    std::vector<Sampler::Choice> choices;
    for (size_t i = 0, next = 0; i < queued.size() && next < plan.now.size(); ++i)
      if (queued[i].first == plan.now[next].sequence) {
        choices.push_back(std::move(output->choices[i]));
        ++next;
      }
    output->choices = std::move(choices);
  }
  int64_t tokens = 0;
  for (const Scheduled& part : plan.now) tokens += part.tokens;
  ++counts.steps;
  counts.computed_tokens += tokens;
  const auto bucket = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(tokens - 1)));
  ++counts.steps_by_tokens[std::min(bucket, counts.steps_by_tokens.size() - 1)];
  if (tokens >= kPromptStep)
    token_seconds = std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(tokens);
  return output;
}

// In the order of the list. Moves batched into one call must not depend on each other.
Status Engine::Impl::Move(std::span<const BlockMove> moves) {
  std::vector<BlockCopy> now;
  for (size_t i = 0; i < moves.size();) {
    const BlockMove::Kind kind = moves[i].kind;
    now.clear();
    const auto depends = [&](const BlockCopy& next) {
      return (kind == BlockMove::Kind::kCopy || kind == BlockMove::Kind::kCopyState) &&
             std::any_of(now.begin(), now.end(), [&](const BlockCopy& done) {
               return done.from == next.to || done.to == next.from || done.to == next.to;
             });
    };
    for (; i < moves.size() && moves[i].kind == kind && !depends(moves[i].blocks); ++i)
      now.push_back(moves[i].blocks);
    if (kind == BlockMove::Kind::kCopy) counts.copied_blocks += static_cast<int64_t>(now.size());
    const StepTrace::Moves traced(trace,
                                  kind == BlockMove::Kind::kCopy        ? "copy blocks"
                                  : kind == BlockMove::Kind::kSwapOut   ? "swap out"
                                  : kind == BlockMove::Kind::kCopyState ? "copy states"
                                                                        : "swap in",
                                  now.size());
    CELER_RETURN_IF_ERROR(kind == BlockMove::Kind::kCopy        ? runner->CopyBlocks(now)
                          : kind == BlockMove::Kind::kSwapOut   ? runner->SwapOut(now)
                          : kind == BlockMove::Kind::kCopyState ? runner->CopyStates(now)
                                                                : runner->SwapIn(now));
  }
  return {};
}

// Asynchronous scheduling: if this step decodes and the next one has the same sequences, it is queued before
// the host has seen the tokens. What it computes for a sequence that turns out to have ended is discarded.
Status Engine::Impl::QueueNext(std::span<const Scheduled> scheduled, std::vector<Slice> slices) {
  if (scheduler.waiting() > 0 || profiling || states.any() || (speculator && speculator->wants_next()) ||
      !runner->RunsAhead(slices))
    return {};
  for (const auto& [sequence, tokens] : scheduled)
    if (sequence->sampler.has_mask() || sequence->output_count() + 1 >= sequence->group->request.max_tokens ||
        (!sequence->group->forked && sequence->group->answers > 1))
      return {};
  std::vector<BlockMove> moves;
  for (size_t i = 0; i < scheduled.size(); ++i) {
    Sequence& sequence = *scheduled[i].sequence;
    if (!blocks.Prepare(&sequence.block_table, sequence.computed + 1, sequence.computed + 2, &moves))
      return {};
    CELER_CHECK(moves.empty());  // the block of the token before it is exclusive since this step
    slices[i].tokens = kNotKnownYet;
    slices[i].position = sequence.computed + 1;
    slices[i].block_table = sequence.block_table;
  }
  CELER_RETURN_IF_ERROR(runner->Queue(slices));
  for (const auto& [sequence, tokens] : scheduled) ahead.emplace_back(sequence, sequence->computed + 1);
  return {};
}

void Engine::Cancel(int64_t request) {
  const auto group = impl_->groups.find(request);
  if (group != impl_->groups.end())
    impl_->EndGroup(*group->second, FinishReason::kCancelled, "", &impl_->pending_events);
}

EngineStats Engine::stats() const {
  EngineStats stats = impl_->counts;
  const BlockManager& blocks = impl_->blocks;
  stats.running = impl_->scheduler.running();
  stats.waiting = impl_->scheduler.waiting();
  stats.swapped = impl_->scheduler.swapped();
  stats.kv_blocks = blocks.blocks();
  stats.kv_blocks_used = blocks.blocks() - blocks.free_blocks();
  stats.kv_blocks_cached = blocks.cached_free_blocks();
  stats.kv_host_blocks = blocks.host_blocks();
  stats.kv_host_blocks_used = blocks.host_blocks() - blocks.free_host_blocks();
  stats.evictions = blocks.evictions();
  stats.swaps = impl_->scheduler.swaps();
  stats.recomputations = impl_->scheduler.recomputations();
  return stats;
}

void Engine::SetMachine(const Machine& machine) {
  if (impl_->meter) impl_->meter->set_machine(machine);
}

Result<std::vector<float>> Engine::Score(std::span<const int32_t> tokens, int64_t first) {
  std::vector<float> out;
  CELER_RETURN_IF_ERROR(VisitLogits(tokens, first, [&](int64_t i, std::span<const float> logits) {
    const auto token = static_cast<size_t>(tokens[i]);
    out.push_back(static_cast<float>(logits[token] - LogSumExp(logits)));
  }));
  return out;
}

Status Engine::VisitLogits(std::span<const int32_t> tokens, int64_t first, const LogitsVisitor& visit) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (first < 1 || first > count)
    return Error::Invalid("scoring from position ", first, " of ", count, " tokens");
  Request request;
  request.prompt.assign(tokens.begin(), tokens.end());
  if (first == count) return CheckRequest(request, impl_->info, true);  // no logits are requested
  Scoring scoring{.first = first, .visit = visit, .visited = first - 1};
  CELER_RETURN_IF_ERROR(impl_->Submit(std::move(request), &scoring));
  std::vector<TokenEvent> others;
  while (!scoring.done && !scoring.error)
    for (TokenEvent& event : Step()) others.push_back(std::move(event));
  impl_->pending_events.insert(impl_->pending_events.end(), others.begin(), others.end());
  if (scoring.error) return *scoring.error;
  return {};
}

std::vector<OperatorWork> Engine::Work(const StepShape& shape) const {
  return impl_->runner->Work(shape);
}

void Engine::StartProfile() {
  impl_->DropAhead();
  impl_->profile.ops = {};
  impl_->profiling = true;
  impl_->runner->set_profile(&impl_->profile);
}

void Engine::StopProfile() {
  impl_->profiling = false;
  impl_->runner->set_profile(impl_->profile.spans ? &impl_->profile : nullptr);
}

std::vector<OperatorTime> Engine::Profile() const {
  std::vector<OperatorTime> times;
  for (size_t i = 0; i < kOpCount; ++i)
    if (const OpProfile::Entry& entry = impl_->profile.ops[i]; entry.calls > 0)
      times.push_back({Name(static_cast<Op>(i)), entry.calls, entry.seconds});
  return times;
}

}  // namespace celer
