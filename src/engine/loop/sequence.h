// A request in flight, and the sequences that it consists of.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "celer/engine.h"
#include "engine/kv/block_manager.h"
#include "engine/kv/state_slots.h"
#include "engine/sample/beams.h"
#include "engine/sample/mask_workers.h"
#include "engine/sample/sampler.h"

namespace celer {

// Scoring: the logits that predict a text's tokens from `first` on are visited.
struct Scoring {
  int64_t first = 1;
  Engine::LogitsVisitor visit = {};
  bool only = true;     // the text is only scored, and nothing is generated
  int64_t visited = 0;  // the token whose logits were visited last; recomputed ones are not visited again
  bool done = false;
  std::optional<Error> error = {};
};

struct Group;

// One text: a prompt and an answer as far as it is known.
struct Sequence {
  // Rows of logits that a slice of a scored text has at most.
  static constexpr int64_t kScoredRows = 64;
  // States of long texts are copied into the prefix cache at multiples of so many tokens.
  static constexpr int64_t kSnapshotTokens = 256;

  Sequence(int64_t id_, const Request& request, int answer_);

  int64_t id;
  Group* group = nullptr;
  int answer;                   // of its group, or which beam it is
  std::vector<int32_t> tokens;  // prompt and output
  int64_t prompt_count;
  int64_t computed = 0;        // leading tokens whose keys and values are in the KV
  std::vector<int32_t> draft;  // tokens that may follow, to be verified in the next step
  BlockTable block_table;      // in the pool
  BlockTable host_table;   // swapped out: host blocks of the computed tokens, behind the beams' common prefix
  bool recurrent = false;  // the model keeps a state of it
  int32_t state = StateSlots::kNone;        // its slot, with the state after `computed` tokens
  int32_t draft_state = StateSlots::kNone;  // during a step: where drafted tokens leave theirs
  // Tokens of a draft that were accepted while others were rejected: a recurrent state does not have them yet, and the
  // next step runs them again, in front of the last token.
  int64_t replayed = 0;
  PrefixCache::Content root = 0;  // 0: no prefix caching for it
  PrefixCache::Content content = 0;
  int64_t published = 0;  // leading blocks that `content` names
  int64_t reached = 0;    // the high-water mark of `computed`: recomputation is no progress
  bool running = false;
  bool ended = false;
  Sampler sampler;
  std::shared_ptr<MaskWorkers::Job> mask_job;  // its mask is being prepared by a worker thread
  uint64_t mask_work = 0, last_mask_work = 0;  // steps of all its masks, and of the last one
  Scoring* scoring = nullptr;                  // of the whole text, or of its prompt

  // Events that are buffered until the best answers are known (best_of).
  std::vector<TokenEvent> held;
  double logprobs = 0;

  int64_t count() const { return static_cast<int64_t>(tokens.size()); }
  int64_t output_count() const { return count() - prompt_count; }
  bool only_scored() const { return scoring && scoring->only; }
  bool speculates() const;  // it is one whose tokens may be drafted
  // Tokens to compute: 1 when decoding. The last token of a scored text predicts nothing that is wanted.
  int64_t pending() const { return count() - computed - (only_scored() ? 1 : 0); }
  // Whether the rows of its next slice are wanted: tokens[i] is predicted by row i - 1.
  bool scores_rows() const {
    return scoring && computed >= scoring->first - 1 && (scoring->only || computed < prompt_count - 1);
  }
  bool decodes() const { return pending() == 1 + replayed && output_count() > 0; }
  bool forks() const;  // other answers are still to begin with its prompt
  // Tokens that may be drafted now: a state is copied into the prefix cache only if a step ends there.
  int64_t most_drafted() const {
    return recurrent && root != 0
               ? (count() + kSnapshotTokens - 1) / kSnapshotTokens * kSnapshotTokens - count()
               : std::numeric_limits<int64_t>::max();
  }
  // Tokens that one step may take.
  int64_t step_tokens() const {
    if (!scoring || computed >= prompt_count - 1)
      return recurrent ? state_tokens() : pending() + static_cast<int64_t>(draft.size());
    // Rows that are visited and the row that is sampled are in different slices.
    const int64_t left = scoring->only ? pending() : prompt_count - 1 - computed;
    return std::min(left, scores_rows() ? kScoredRows : scoring->first - 1 - computed);
  }

 private:
  // Only the state after the last token of a step exists: steps end where it is to be copied.
  int64_t state_tokens() const;
};

// A request, the unit of the scheduler's order: its sequences are adjacent in it.
struct Group {
  // Total order of groups: arrival breaks ties of priority.
  struct Order {
    int priority = 0;
    int64_t arrival = 0;
    auto operator<=>(const Order&) const = default;
  };

  int64_t id = 0;
  Order order;
  Request request;
  std::vector<std::unique_ptr<Sequence>> sequences;  // in flight
  int answers = 1;                                   // of which `request.n` are returned
  bool holds_back = false;                           // events are sent once all answers have ended
  std::vector<std::unique_ptr<Sequence>> ended;      // of a request that holds back
  int open = 0;                                      // answers that have not ended
  std::unique_ptr<Beams> beams;
  std::unique_ptr<Scoring> prompt_scoring;
  std::vector<TokenEvent::PromptToken> prompt_scores;
  std::vector<double> pooled;                        // sums of hidden states, with Request::pooling
  int64_t pooled_tokens = 0;                         // that are in them; recomputed ones are not added again
  std::chrono::steady_clock::time_point begun = {};  // when the first step with it began
  int64_t cached = -1;                               // prompt tokens found in the KV; -1: it has not begun
  bool forked = false;                               // all its answers have begun
  bool event_sent = false;                           // its first one
  bool counted = false;                              // in the engine's statistics
  PrefixCache::Content root = 0;                     // of its sequences, once they have ended

  // --- the scheduler's ---
  int64_t advanced_at = 0;  // the step that last computed something new for it
  // Of preempted beams: the blocks of their common prefix. The first beam recomputes them or has them in its
  // host table, and the others share them when they are admitted again.
  int64_t common_blocks = 0;

  // Beams are in the pool together or not at all: each step chooses among all of them. Answers of other
  // requests are independent, so that they need not all fit at once.
  bool together() const { return beams && sequences[0]->output_count() > 0; }
};

inline int64_t Sequence::state_tokens() const {
  int64_t most = pending();
  if (decodes()) return most + static_cast<int64_t>(draft.size());
  // Answers fork before the last token of their prompt, which each of them runs for itself.
  if (forks() && computed < prompt_count - 1) most = std::min(most, prompt_count - 1 - computed);
  // A snapshot for the prefix cache is taken behind the last full block.
  const int64_t full = (count() - 1) / kKvBlockTokens * kKvBlockTokens;
  if (root != 0 && computed < full) most = std::min(most, full - computed);
  return most;
}

inline bool Sequence::speculates() const {
  return !group->beams && !only_scored() && group->request.pooling == Pooling::kNone;
}

inline bool Sequence::forks() const {
  return group->answers > 1 && !group->forked && !group->beams;
}

}  // namespace celer
