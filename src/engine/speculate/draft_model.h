// A smaller model that guesses for a larger one. It has a KV of its own, and keeps up with the texts in it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "celer/options.h"
#include "engine/kv/block_manager.h"
#include "engine/loop/sequence.h"
#include "engine/runners/runner.h"
#include "engine/speculate/speculation_cost.h"

namespace celer {

class DraftModel {
 public:
  explicit DraftModel(std::unique_ptr<Runner> runner);
  // Of the same vocabulary as `options.model`, which options.speculation.draft names.
  static Result<std::unique_ptr<DraftModel>> Load(const EngineOptions& options);

  const Runner::Info& info() const { return runner_->info(); }

  // Guesses up to `depth` tokens for each sequence. Those for which the KV has no room, or whose text it has
  // not read yet, go without: it reads a part of long texts each time. With `same_tokens` it draws as the
  // large model will; else DrawnFrom() says what from.
  struct Wanted {
    Sequence* sequence;
    int64_t depth;
  };
  // A guess ends where the next token's mask takes more than `mask_work` steps; what is spent is subtracted.
  Status Guess(std::span<const Wanted> wanted, bool same_tokens, uint64_t* mask_work);
  const Distribution* DrawnFrom(const Sequence& sequence, size_t i) const;
  void Forget(const Sequence& sequence);

  // Of one token for each of so many sequences; 0: it has not run yet.
  double StepSeconds(int64_t sequences) const { return times_.Of(sequences); }
  int64_t free_blocks() const { return blocks_.free_blocks(); }

 private:
  struct State {
    BlockTable table;
    int64_t computed = 0;  // leading tokens whose keys and values are in the KV, guesses among them
    // What was guessed when the text had `count` tokens.
    std::vector<int32_t> guess;
    int64_t count = 0;
    PrefixCache::Content root = 0, content = 0;
    int64_t published = 0;
    std::vector<Distribution> drawn_from;
    bool failed = false;  // its logits were not finite
  };
  // A sequence that still guesses.
  struct Part {
    Wanted wanted;
    State* state;
    int64_t tokens = 0;  // that run now
  };
  State& StateOf(const Sequence& sequence);
  // Forgets what did not come as it was guessed.
  void RollBack(const Sequence& sequence, State* state);
  // Room for the parts of the text that it has not read, and for the guesses.
  Result<bool> Prepare(const Part& part);
  // Runs their next tokens and draws one more for each that has read its whole text.
  Status Step(std::span<const Part> parts, bool same_tokens, uint64_t* mask_work);
  void Draw(const Part& part, std::span<const float> row, bool same_tokens, uint64_t* mask_work);
  void Publish(const Sequence& sequence, State* state);

  std::unique_ptr<Runner> runner_;
  BlockManager blocks_;
  StepTimes times_;
  std::unordered_map<int64_t, State> states_;
};

}  // namespace celer
