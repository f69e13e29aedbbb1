// The cost model of speculative decoding: the time of steps by their rows, and the acceptance rate. Both are
// learned online.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace celer {

// Seconds of a step by its rows: the tokens that it runs.
class StepTimes {
 public:
  void Add(int64_t rows, double seconds);
  // As measured, interpolated or extrapolated; optimistic rather than pessimistic, so that a size is
  // explored. 0: nothing is known.
  double Of(int64_t rows) const;

 private:
  struct Size {
    std::array<double, 7> last = {};
    int64_t count = 0, at = 0;  // how often it was measured, and when last
    double Median() const;
  };
  // A few measurements may all be outliers: they expire after a while, and the size is explored again.
  bool Counts(const Size& size) const;

  std::map<int64_t, Size> sizes_;
  int64_t added_ = 0;
};

// The acceptance rate, as an exponentially weighted average.
class Acceptance {
 public:
  // `prior` counts as much as `weight` observed tokens; the weight of an observation decays by e in `window`
  // tokens.
  Acceptance(double window, double weight) : window_(window), weight_(weight) {}
  void Add(int64_t right, bool then_wrong);
  double Rate(double prior) const { return (right_ + prior * weight_) / (seen_ + weight_); }

 private:
  double window_, weight_;
  double right_ = 0, seen_ = 0;
};

// A draft of up to `most` tokens, each of which is accepted with probability `rate` if those before it are.
struct DraftOffer {
  double rate = 0;
  int64_t most = 0;
};
// How many tokens of each offer to verify in one step with `decoding` sequences, for the most tokens per
// second. All 0 if that is not clearly faster than plain decoding.
std::vector<int64_t> BestDepths(std::span<const DraftOffer> offers, int64_t decoding, const StepTimes& times);
// Likewise, of a model that drafts for all offers at once: one depth for all, each token of which takes
// `draft_s`.
int64_t BestDepth(std::span<const DraftOffer> offers, int64_t decoding, const StepTimes& times,
                  double draft_s);

// Threshold over plain decoding, below which nothing is drafted.
inline constexpr double kClearlyFaster = 1.04;
// Before any step was measured: how many times the speed of plain decoding one text has at the best depth,
// where a draft's step takes `draft_share` of a plain one. As optimistic about rows as StepTimes.
double PredictGain(const DraftOffer& offer, double draft_share);

}  // namespace celer
