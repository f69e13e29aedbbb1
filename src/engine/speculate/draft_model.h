// The draft model of speculative decoding: a smaller model that proposes tokens for the target. It has a KV
// of its own, in which it follows the texts.
//
// Or the target's own layers for multi-token prediction. Such a predictor makes each token out of the one in front of it
// and the target's hidden state before that one; where it goes on with its own tokens, out of its own hidden state. So its
// text begins with the second token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "celer/options.h"
#include "engine/kv/block_manager.h"
#include "engine/kv/state_slots.h"
#include "engine/loop/sequence.h"
#include "engine/runners/runner.h"
#include "engine/speculate/speculation_cost.h"

namespace celer {

struct SharedWeights;

class DraftModel {
 public:
  // `reads_hidden`: it is a predictor.
  explicit DraftModel(std::unique_ptr<Runner> runner, bool reads_hidden = false);
  // Of the same vocabulary as `options.model`, which options.speculation.draft names.
  static Result<std::unique_ptr<DraftModel>> Load(const EngineOptions& options,
                                                  SharedWeights* shared = nullptr);

  const Runner::Info& info() const { return runner_->info(); }

  // Drafts up to `depth` tokens for each sequence. None for those that its KV has no room for, or whose text
  // it has not prefilled yet: long texts are prefilled in chunks. With `same_tokens` it draws with the random
  // numbers that the target will use; else DrawnFrom() has the distribution.
  struct Wanted {
    Sequence* sequence;
    int64_t depth;
  };
  // A draft ends where the next token's mask takes more than `mask_work` steps; what is spent is subtracted.
  Status Propose(std::span<const Wanted> wanted, bool same_tokens, uint64_t* mask_work);
  const Distribution* DrawnFrom(const Sequence& sequence, size_t i) const;
  void Forget(const Sequence& sequence);
  bool reads_hidden() const { return reads_hidden_; }
  // The target's hidden states of tokens from Sequence::computed on; those of drafted ones may follow.
  void ReadHidden(Sequence& sequence, std::span<const float> rows);

  // Seconds of a step of one token for each of so many sequences; 0: it has not run yet.
  double StepSeconds(int64_t sequences) const { return times_.Of(sequences); }
  int64_t free_blocks() const { return blocks_.free_blocks(); }

 private:
  struct State {
    BlockTable table;
    int64_t computed = 0;  // leading tokens whose keys and values are in the KV, drafted ones included
    // What was drafted when the text had `count` tokens.
    std::vector<int32_t> draft;
    int64_t count = 0;
    PrefixCache::Content root = 0, content = 0;
    int64_t published = 0;
    std::vector<Distribution> drawn_from;
    bool failed = false;  // its logits were not finite
    // Of a model with recurrent layers: the slot with the state in front of position `settled`, and the one in which it
    // goes on with its drafted tokens.
    int32_t slot = StateSlots::kNone, draft_slot = StateSlots::kNone;
    int64_t settled = 0;
    // Of a predictor: hidden states of the target from position hidden_first on, and its own one of the last token.
    std::vector<float> hidden, own_hidden;
    int64_t hidden_first = 0;
    int64_t skipped = 0;  // leading tokens without hidden states, which it does without
  };
  // A sequence that is still being drafted for.
  struct Part {
    Wanted wanted;
    State* state;
    int64_t tokens = 0;  // that run now
  };
  // What it reads of a sequence. Positions of a State count from there.
  std::span<const int32_t> TextOf(const Sequence& sequence, const State& state) const {
    return std::span(sequence.tokens).subspan(static_cast<size_t>(state.skipped) + (reads_hidden_ ? 1 : 0));
  }
  State& StateOf(const Sequence& sequence);
  void SkipTo(int64_t position, State* state);
  bool TakeSlots(State* state);
  // Drops drafted tokens that were rejected.
  void RollBack(const Sequence& sequence, State* state);
  // Blocks for the rest of the text and for the draft.
  Result<bool> Prepare(const Part& part);
  Slice SliceOf(const Part& part, std::span<const int32_t> tokens);
  // Appends the hidden states in front of the part's tokens.
  void AppendHidden(const Part& part, bool drafted, std::vector<float>* rows) const;
  // Runs their next tokens and drafts one more for each text that is prefilled.
  Status Step(std::span<const Part> parts, bool same_tokens, uint64_t* mask_work);
  void Draw(const Part& part, std::span<const float> row, bool same_tokens, uint64_t* mask_work);
  void Publish(const Sequence& sequence, State* state);

  int64_t width() const { return info().config.hidden; }

  std::unique_ptr<Runner> runner_;
  bool reads_hidden_;
  BlockManager blocks_;
  StateSlots slots_;
  StepTimes times_;
  std::unordered_map<int64_t, State> states_;
};

}  // namespace celer
