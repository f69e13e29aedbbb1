// A request while it is being worked on, and the texts that it consists of.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "celer/engine.h"
#include "engine/kv/block_manager.h"
#include "engine/sample/beams.h"
#include "engine/sample/mask_workers.h"
#include "engine/sample/sampler.h"

namespace celer {

// Logits that somebody wants to see: those that predict a text's tokens from `first` on.
struct Scoring {
  int64_t first = 1;
  Engine::LogitsVisitor visit = {};
  bool only = true;     // the text is read to its end, and nothing is generated
  int64_t visited = 0;  // the token whose logits were seen last; what is computed again is not shown again
  bool done = false;
  std::optional<Error> error = {};
};

struct Group;

// One text: a prompt and an answer as far as it is known.
struct Sequence {
  // Rows of logits that a slice of a scored text has at most.
  static constexpr int64_t kScoredRows = 64;

  Sequence(int64_t id_, const Request& request, int answer_);

  int64_t id;
  Group* group = nullptr;
  int answer;                   // of its group, or which beam it is
  std::vector<int32_t> tokens;  // prompt and output
  int64_t prompt_count;
  int64_t computed = 0;        // leading tokens whose keys and values are in the KV
  std::vector<int32_t> guess;  // tokens that may follow, to be verified in the next step
  BlockTable block_table;      // in the pool
  BlockTable
      host_table;  // swapped out: the blocks of the computed tokens behind those that beams have in common
  PrefixCache::Content root = 0;  // 0: it neither uses the prefix cache nor is found in it
  PrefixCache::Content content = 0;
  int64_t published = 0;  // leading blocks that `content` names
  int64_t reached = 0;    // the most that `computed` was: what is computed again is no progress
  bool running = false;
  bool ended = false;
  Sampler sampler;
  std::shared_ptr<MaskWorkers::Job> mask_job;  // its mask is being prepared beside the engine's thread
  uint64_t mask_work = 0, last_mask_work = 0;  // steps of all its masks, and of the last one
  Scoring* scoring = nullptr;                  // of the whole text, or of its prompt

  // Of answers that are held back until it is known which are the best.
  std::vector<TokenEvent> held;
  double logprobs = 0;

  int64_t count() const { return static_cast<int64_t>(tokens.size()); }
  int64_t output_count() const { return count() - prompt_count; }
  bool only_scored() const { return scoring && scoring->only; }
  // Tokens to compute: 1 when decoding. The last token of a scored text predicts nothing that is wanted.
  int64_t pending() const { return count() - computed - (only_scored() ? 1 : 0); }
  // Whether the rows of its next slice are wanted: tokens[i] is predicted by row i - 1.
  bool scores_rows() const {
    return scoring && computed >= scoring->first - 1 && (scoring->only || computed < prompt_count - 1);
  }
  bool decodes() const { return pending() == 1 && output_count() > 0; }
  // Tokens that one step may take.
  int64_t step_tokens() const {
    if (!scoring || computed >= prompt_count - 1) return pending() + static_cast<int64_t>(guess.size());
    // Rows that are seen and the row that is sampled are in different slices.
    const int64_t left = scoring->only ? pending() : prompt_count - 1 - computed;
    return std::min(left, scores_rows() ? kScoredRows : scoring->first - 1 - computed);
  }
};

// A request. It is what the scheduler orders: its sequences never stand apart in that order.
struct Group {
  // Who goes first. No two groups are equal.
  struct Order {
    int priority = 0;
    int64_t arrival = 0;
    auto operator<=>(const Order&) const = default;
  };

  int64_t id = 0;
  Order order;
  Request request;
  std::vector<std::unique_ptr<Sequence>> sequences;  // those that are worked on
  int answers = 1;                                   // of which `request.n` are told
  bool holds_back = false;                           // events come once all answers are there
  std::vector<std::unique_ptr<Sequence>> ended;      // of a request that holds back
  int open = 0;                                      // answers that have not ended
  std::unique_ptr<Beams> beams;
  std::unique_ptr<Scoring> prompt_scoring;
  std::vector<TokenEvent::PromptToken> prompt_scores;
  std::vector<double> pooled;  // sums of hidden states, with Request::pooling
  int64_t pooled_tokens = 0;   // that are in them; what is computed again is not added again
  std::chrono::steady_clock::time_point begun = {};  // when the first step with it began
  int64_t cached = -1;                               // prompt tokens found in the KV; -1: it has not begun
  bool forked = false;                               // all its answers have begun
  bool told = false;                                 // an event was sent
  bool counted = false;                              // in the engine's statistics
  PrefixCache::Content root = 0;                     // of its sequences, once they have ended

  // --- the scheduler's ---
  int64_t advanced_at = 0;  // the step that last computed something new for it
  // Of beams that were preempted: the leading blocks that all of them have in common. The first beam computes
  // them again or has them in its host table, and the others share them when they come back.
  int64_t common_blocks = 0;

  // Beams are in the pool together or not at all: each step chooses among all of them. The answers of other
  // requests draw on their own, so that they need not all fit at once.
  bool together() const { return beams && sequences[0]->output_count() > 0; }
};

}  // namespace celer
