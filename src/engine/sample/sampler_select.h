// Finds the tokens that matter in a row of logits without sorting the row: each pass reads the row once, a
// vector at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace celer {

// A token that may be chosen.
struct Candidate {
  int32_t token = 0;
  float logit = 0;
  float weight = 0;  // its probability, but for a factor that all of them share
  float rank = 0;    // what they are ordered by, the smallest first
};
// By rank; ties by logit, the largest first, then by token id: the order is the same on every machine.
bool Before(const Candidate& a, const Candidate& b);

// One row of logits, none of them NaN or +infinity. Looks at whole blocks of the row first.
class LogitRow {
 public:
  static constexpr size_t kBlock = 64;

  // Keeps its memory from row to row. The logits must outlive their use here.
  void Reset(std::span<const float> logits);

  float max() const { return max_; }
  int32_t Largest() const;  // ties: the lowest token id

  // Sums over the row, of w = exp((logit - max) * inverse_temperature). In double across blocks.
  struct Sums {
    double weight = 0;
    double weighted_logit = 0;  // of w * (logit - max) * inverse_temperature
  };
  Sums SumWeights(float inverse_temperature, bool weighted_logit) const;

  // A logit that at least `count` tokens reach, near the largest such; -infinity if that is all of them.
  float ReachedBy(size_t count);
  // Every token with a logit of at least `least` whose weight is not 0; in order of their ids. Rank: -logit.
  void Gather(float least, float inverse_temperature, std::vector<Candidate>* out) const;

 private:
  std::array<float, kBlock> LastBlock(size_t begin) const;  // -infinity behind the end

  std::span<const float> logits_;
  std::vector<float> block_max_;
  std::vector<float> scratch_;
  float max_ = 0;
};

// Puts the candidates in order as far as it must, and returns how many, in that order, it takes for their
// weights to add up to `target`: at least the target, or more than it with `exceed`. They then stand first,
// and the one that got there last of them. One more than there are if all together do not reach it.
size_t TakeUntil(std::span<Candidate> candidates, double target, bool exceed);

// The `count` first in order stand first, in order.
void SortFirst(std::span<Candidate> candidates, size_t count);

}  // namespace celer
