// Speculative decoding: drafts tokens for the sequences of a step, which verifies several tokens of a
// sequence at once. Drafts come from the text itself (lookup_index.h) or from a smaller model
// (draft_model.h).
//
// The draft depth is adaptive: it depends on the acceptance rate of this text, and on the measured cost of a
// step with so many rows. Where no draft pays, steps are plain.
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
    int depth = 0;  // drafted tokens at most; 0: kMostDepth
    // The tokens are those of plain decoding, also where a model drafts for a text with a temperature. Else
    // they are distributed alike (rejection sampling), and more drafts are accepted.
    bool same_tokens = false;
    bool always = false;  // drafts as deep as it can whether it pays or not
  };
  static Options OptionsFor(const EngineOptions& options);
  // Drafts with `draft`, else by prompt lookup.
  explicit Speculator(const Options& options, std::unique_ptr<DraftModel> draft = nullptr);
  // From the engine's options; null if speculation is off. One with `speculation` mtp still needs its predictor.
  static Result<std::unique_ptr<Speculator>> Load(const EngineOptions& options,
                                                  SharedWeights* draft = nullptr);
  // The target's own, which outlives it.
  void UsePredictor(std::unique_ptr<Runner> predictor);
  // The model that verifies. An error if the draft has another vocabulary. Warns if drafting is not expected
  // to pay.
  Status SetTarget(const Runner::Info& target);
  // Of a draft model, before anything is measured; else 0.
  double predicted_gain() const { return predicted_gain_; }

  // Fills Sequence::draft of those that decode. `free_blocks`: of the KV. `queued`: the next step was queued
  // ahead, so it has no drafts; if one would pay, wants_next() says not to queue the step after it ahead.
  // `mask_work`: steps that token masks of drafts may take; what is spent is subtracted.
  Status Propose(std::span<Sequence* const> running, int64_t free_blocks, bool queued, uint64_t* mask_work);
  bool wants_next() const { return wants_next_; }
  // The distribution that draft[i] was drawn from, for rejection sampling; null: it is accepted if it equals
  // the sampled token.
  const Distribution* DrawnFrom(const Sequence& sequence, size_t i) const;

  // The rows of a step whose time says what decoding costs; 0: it computes prompts, too.
  static int64_t RowsOf(std::span<const Scheduled> scheduled);
  void Ran(int64_t rows, double seconds);
  // Whether drafts are made from the target's hidden states; then those of all tokens that a step ran for a sequence,
  // drafted ones included, before the step is committed.
  bool reads_hidden() const { return draft_ && draft_->reads_hidden(); }
  void ReadHidden(Sequence& sequence, std::span<const float> rows) { draft_->ReadHidden(sequence, rows); }
  void Forget(const Sequence& sequence);

 private:
  struct State {
    LookupIndex index;
    // What was drafted when the text had `count` tokens, whether it was verified or not.
    std::vector<int32_t> draft;
    int64_t count = 0;
    int length = 0;  // of the match
    std::vector<Acceptance> acceptance;
    int64_t steps_without_draft = 0,
            backoff = kFirstBackoff;  // exponential back-off: steps until a draft is tried again
  };
  static constexpr int64_t kFirstBackoff = 32, kMaxBackoff = 1024;

  State& StateOf(const Sequence& sequence);
  // Compares the draft with the tokens that came.
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
