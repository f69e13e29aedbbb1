// Speculative decoding: guesses how the texts of a step go on, so that the step verifies several tokens of a
// text at once. Guesses come from the text itself (lookup_index.h) or from a smaller model (draft_model.h).
//
// How many tokens are guessed depends on what pays: on how often the guesses for this text were right, and on
// what a step with so many rows costs here. Where nothing pays, steps are plain.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "celer/options.h"
#include "engine/loop/scheduler.h"
#include "engine/speculate/draft_model.h"
#include "engine/speculate/lookup_index.h"
#include "engine/speculate/speculation_cost.h"

namespace celer {

class Speculator {
 public:
  static constexpr int kMostDepth = 15;  // 16 rows in all

  struct Options {
    int depth = 0;  // tokens guessed at once, at most; 0: kMostDepth
    // The tokens are those of plain decoding, also where a model drafts for a text with a temperature. Else
    // they are distributed alike, and more guesses are right.
    bool same_tokens = false;
    bool always = false;  // guesses as deep as it can whether it pays or not
  };
  static Options OptionsFor(const EngineOptions& options);
  // With `draft` it guesses, else the text itself does.
  explicit Speculator(const Options& options, std::unique_ptr<DraftModel> draft = nullptr);
  // What the engine's options ask for; none if they ask for nothing.
  static Result<std::unique_ptr<Speculator>> Load(const EngineOptions& options);
  // What it guesses for. An error if the draft has another vocabulary. Says so if guesses are not expected to
  // pay.
  Status SetTarget(const Runner::Info& target);
  // Of a draft model, before anything is measured; else 0.
  double predicted_gain() const { return predicted_gain_; }

  // Fills Sequence::guess of those that decode. `free_blocks`: of the KV. `queued`: the next step was queued
  // before, so it has no guesses; if one would pay, the step after it should not be queued so.
  // `mask_work`: steps that token masks of guesses may take; what is spent is subtracted.
  Status Propose(std::span<Sequence* const> running, int64_t free_blocks, bool queued, uint64_t* mask_work);
  bool wants_next() const { return wants_next_; }
  // What guess[i] was drawn from; null: it is to be compared with the token that is drawn without it.
  const Distribution* DrawnFrom(const Sequence& sequence, size_t i) const;

  // The rows of a step whose time says what decoding costs; 0: it computes prompts, too.
  static int64_t RowsOf(std::span<const Scheduled> scheduled);
  void Ran(int64_t rows, double seconds);
  void Forget(const Sequence& sequence);

 private:
  struct State {
    LookupIndex index;
    // What was guessed when the text had `count` tokens, whether it was verified or not.
    std::vector<int32_t> guess;
    int64_t count = 0;
    int length = 0;  // of the match
    std::vector<Acceptance> acceptance;
    int64_t quiet = 0, patience = kFirstPatience;  // steps without a draft, and how many until one is tried
  };
  static constexpr int64_t kFirstPatience = 32, kMostPatience = 1024;

  State& StateOf(const Sequence& sequence);
  // Compares what was guessed with what has come.
  void Learn(const Sequence& sequence, State* state);
  double RateOf(const State& state, int length) const;
  int64_t MostFor(const Sequence& sequence) const;
  Status Lookup(std::span<Sequence* const> sequences, int64_t decoding, bool queued);
  Status Draft(std::span<Sequence* const> sequences, int64_t decoding, bool queued, uint64_t* mask_work);
  double DraftSeconds(int64_t sequences) const;

  Options options_;
  std::unique_ptr<DraftModel> draft_;
  double draft_share_ = 1;  // of what the large model reads
  double predicted_gain_ = 0;
  StepTimes times_;
  std::vector<Acceptance> acceptance_;  // of all texts
  std::unordered_map<int64_t, State> states_;
  bool wants_next_ = false;
};

}  // namespace celer
