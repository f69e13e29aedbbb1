// Beam search of one request. Pure bookkeeping over rows of logits: which beam is extended by which token,
// which have ended, and when no better one can come. Equal to beam search in Hugging Face's transformers,
// with the same settings.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "celer/engine.h"

namespace celer {

class Beams {
 public:
  // Reads the beam settings, stop tokens, min_tokens and max_tokens of `request`.
  explicit Beams(const Request& request);

  struct Text {
    std::vector<int32_t> tokens;  // of the answer
    std::vector<float> logprobs;  // of each token
    float score = 0;              // running: log-probability; ended: with the length penalty
    bool stopped = false;         // by a stop token, else by its length
  };
  // A running beam of the next step, and the beam that it extends.
  struct Next {
    int parent;  // among those of this step
    int32_t token;
  };
  // `logits` [running texts, vocab], in the order of the last Next list; at first there is one text. Empty
  // when the search is over.
  std::vector<Next> Advance(std::span<const float> logits, int64_t vocab);

  // The hypotheses that have ended, best first; at most `width`.
  const std::vector<Text>& ended() const { return ended_; }
  // Candidates that a step looks at; the vocabulary must have as many.
  static int64_t Candidates(const Request& request);

 private:
  BeamSearch settings_;
  std::vector<int32_t> stop_tokens_;
  int64_t min_tokens_, max_tokens_, candidates_;
  std::vector<Text> running_ = {Text()};
  std::vector<Text> ended_;
  bool can_improve_ = true;
};

}  // namespace celer
