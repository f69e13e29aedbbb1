// The inside of an Engine (celer/engine.h). engine.cc takes requests and runs steps; engine_commit.cc does
// what follows from a step's output.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "celer/engine.h"
#include "engine/cost/work_meter.h"
#include "engine/kv/block_manager.h"
#include "engine/kv/kv_event_log.h"
#include "engine/loop/scheduler.h"
#include "engine/loop/sequence.h"
#include "engine/loop/step_trace.h"
#include "engine/runners/runner.h"
#include "engine/speculate/speculation.h"

namespace celer {

struct Engine::Impl {
  using Clock = std::chrono::steady_clock;

  Impl(std::unique_ptr<Runner> runner_, const EngineOptions& options,
       std::unique_ptr<Speculator> speculator_);

  Result<int64_t> Submit(Request request, Scoring* scoring);
  void ExpireDeadlines(Clock::time_point now);
  void StartTrace(StepTrace& to);

  // The step that was queued ahead, less the sequences that have ended, or else a new one. Requests that
  // arrived in the meantime join the step after it.
  StepPlan NextStepPlan();
  // Moves blocks, queues the step, unless it was queued ahead, and the one after it, if that is certain;
  // takes the step.
  Result<StepOutput> Run(const StepPlan& plan);
  void DropAhead();
  Status Move(std::span<const BlockMove> moves);
  std::vector<Slice> SlicesOf(std::span<const Scheduled> scheduled);
  Status QueueNext(std::span<const Scheduled> scheduled, std::vector<Slice> slices);

  // --- engine_commit.cc ---
  void Commit(std::span<const Scheduled> scheduled, const StepOutput& output,
              std::vector<TokenEvent>* events);
  // False: the answer has ended, and the sequence with it.
  bool CommitChoice(Sequence& sequence, const Sampler::Choice& choice, std::vector<TokenEvent>* events);
  void CommitBeams(Group& group, std::span<const float> logits, std::vector<TokenEvent>* events);
  // False: one of the rows is not finite.
  bool CommitScores(Sequence& sequence, int64_t tokens, std::span<const float> logits);
  // --- engine_embed.cc ---
  // Pools the hidden states of the slice's rows, and emits the embedding at the end of the prompt.
  // False: one of them is not finite.
  bool CommitHidden(Sequence& sequence, int64_t tokens, std::span<const float> rows,
                    std::vector<TokenEvent>* events);

  // --- engine_commit.cc ---
  // Puts the full blocks of what is computed into the prefix cache.
  void Publish(Sequence& sequence);
  // Likewise its state, at some of their ends.
  void SaveState(const Sequence& sequence);
  // Forks the other answers once the prompt is computed.
  void Fork(Sequence& first);
  // Those of models with recurrent layers, in front of the prompt's last token: the state behind it is not the one that
  // they begin with.
  void ForkWithStates();
  void TakeForkedState(const Sequence& first, Sequence& sequence);
  // Slots for beams: each goes on from its parent's. False: there are too few.
  bool ShareStates(std::span<const Beams::Next> next, const Group& group, std::vector<int32_t>* slots);
  // Adds what belongs to a request's first event, and sends the event or buffers it.
  void Emit(Sequence& sequence, TokenEvent event, std::vector<TokenEvent>* events);
  void Send(Group& group, TokenEvent event, std::vector<TokenEvent>* events);
  void EndAnswer(Sequence& sequence, std::vector<TokenEvent>* events);
  void EmitBest(Group& group, std::vector<TokenEvent>* events);
  void EmitBeams(Group& group, std::vector<TokenEvent>* events);
  // All open answers end for the same reason.
  void EndGroup(Group& group, FinishReason reason, const std::string& error, std::vector<TokenEvent>* events);
  void Refuse(Group& group, std::vector<TokenEvent>* events);  // it never fits
  void Release(Sequence& sequence);                            // its blocks
  void Keep(std::unique_ptr<Sequence> sequence);               // in `ended`, if need be
  void Forget(Group& group);                                   // and what it had
  // The device failed: every request ends, and no other is taken.
  void Stop(const Error& error, std::vector<TokenEvent>* events);
  // Why the logits after the first `count` tokens of this sequence are not finite. The blocks of its request
  // are cleared and leave the prefix cache.
  Error ExplainFault(Sequence& sequence, int64_t count);
  // Runs the tokens once more, to find the first layer whose output is not finite.
  std::string FindFault(std::span<const int32_t> tokens, const Sequence& sequence);

  // --- engine_kv.cc ---
  // Prefixes are shared by prompts with the same salt, the same adapters and the same rope angles.
  KvScope ScopeOf(const Request& request, const LoraMix* lora) const;
  PrefixCache::Content TakeRoot(const Request& request);
  // Rows whose logits or hidden states are reported are computed even where the prefix is cached.
  static bool NeedsAllRows(const Request& request) {
    return request.pooling == Pooling::kMean || (request.prompt_logprobs >= 0 && request.prompt.size() > 1);
  }

  // --- engine_masks.cc ---
  // Before each step: which of the running sequences have their token mask ready.
  void PrepareMasks(std::vector<TokenEvent>* events);
  Status PrepareMask(Sequence& sequence);
  void WaitForMask();  // for a moment, when there is nothing else to do

  // --- engine_speculate.cc ---
  Status Propose();
  // Slots for the states behind drafts of models with recurrent layers. Without one a draft is dropped.
  void TakeDraftStates(StepPlan* plan);
  // After a step whose first tokens up to `certain` are the text's: with all drafted ones accepted, the state behind them
  // is the sequence's, else that behind `certain`.
  void SettleDraft(Sequence& sequence, int64_t certain, bool accepted);
  // Verifies the tokens drafted for a sequence with the logits after its last token and after each drafted
  // one. False: they are not finite where they are needed.
  bool CommitDraft(Sequence& sequence, int64_t drafted, std::span<const float> logits,
                   std::vector<TokenEvent>* events);

  std::unique_ptr<Runner> runner;
  std::optional<WorkMeter> meter;  // none: the runner's model has no layers to count
  BlockManager blocks;
  StateSlots states;
  std::vector<BlockMove> state_copies;  // for the next step, before its own moves
  Scheduler scheduler;
  std::unique_ptr<Speculator> speculator;  // may be none
  std::vector<int32_t> with_drafts;        // tokens of slices, until they are queued
  bool prefix_cache;
  std::unordered_map<int64_t, std::unique_ptr<Group>> groups;
  std::multimap<Clock::time_point, int64_t> deadlines;
  std::vector<std::pair<Sequence*, int64_t>> ahead;  // with its position, of a step queued ahead
  // Sequences of that step that have ended; the runner still refers to them.
  std::vector<std::unique_ptr<Sequence>> ended;
  std::vector<TokenEvent> pending_events;  // for the next Step()
  Info info;
  std::shared_ptr<Adapters> adapters;
  EngineStats counts;
  double token_seconds = 0;  // of prompts, lately: to predict the cost of recomputation
  OpProfile profile;
  bool profiling = false;
  StepTrace* trace = nullptr;
  std::shared_ptr<KvEventLog> kv_log;  // may be none
  std::optional<Error> fault;
  std::optional<Clock::time_point> busy_since;  // the end of the last step, if more was to be done then
  int64_t next_id = 1, next_sequence = 1;
  std::vector<std::pair<int64_t, int64_t>> mask_jobs;  // groups and sequences whose masks are being prepared
  // Steps of some nanoseconds, for masks on this thread between two steps. Those that are cached take a few
  // thousand.
  static constexpr uint64_t kMaskWorkPerStep = 300'000;
  uint64_t mask_work = kMaskWorkPerStep;  // what is left of it
  MaskWorkers mask_workers;
};

}  // namespace celer
