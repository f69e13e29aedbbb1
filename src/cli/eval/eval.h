// How far a choice of kernels, weights and KV is from exact arithmetic, token by token.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/embedded_file.h"

namespace celer::cli {

// What `celer eval` reads unless it is given a text: eval_text.txt, the first chapters of Jane Austen's
// Northanger Abbey (1803), in the public domain.
std::span<const EmbeddedFile> EvalTextFiles();
inline std::string_view EvalText() {
  return EvalTextFiles().front().body;
}

// What two distributions over the vocabulary have in common at one position.
struct Agreement {
  double divergence = 0;  // KL(exact || other), in nats
  bool same_top = false;  // the same most likely token
  int shared_top5 = 0;    // of the five most likely ones
};
// Both as log-probabilities.
Agreement Compare(std::span<const float> exact, std::span<const float> other);

// In place: logits become log-probabilities. False if one of them is not a number, or none is finite.
bool LogSoftmax(std::span<float> logits);

// Over many positions.
struct Divergence {
  std::vector<float> values = {};  // KL of each position
  int64_t same_top = 0;
  int64_t shared_top5 = 0;

  void Add(const Agreement& at);
  double Mean() const;
  double Max() const;
  double Percentile(double percent) const;  // the nearest rank
  double SameTop() const;                   // a share
  double SharedTop5() const;                // a share
};

}  // namespace celer::cli
