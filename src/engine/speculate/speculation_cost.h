// Whether a guess is worth its price: what steps of so many rows cost here, and how often guesses are right.
// Both are learned while the engine runs.
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
  // As measured, or between and beyond what was measured; a little too good rather than too bad, so that it
  // is tried. 0: nothing is known.
  double Of(int64_t rows) const;

 private:
  struct Size {
    std::array<double, 7> last = {};
    int64_t count = 0, at = 0;  // how often it was measured, and when last
    double Median() const;
  };
  // A size that was seen a few times may have been disturbed each time. After a while it is tried again.
  bool Counts(const Size& size) const;

  std::map<int64_t, Size> sizes_;
  int64_t added_ = 0;
};

// How often the next token of a guess is the right one, of late.
class Acceptance {
 public:
  // `prior` counts as much as `weight` tokens that were looked at; what is `window` tokens ago counts a
  // third.
  Acceptance(double window, double weight) : window_(window), weight_(weight) {}
  void Add(int64_t right, bool then_wrong);
  double Rate(double prior) const { return (right_ + prior * weight_) / (seen_ + weight_); }

 private:
  double window_, weight_;
  double right_ = 0, seen_ = 0;
};

// Guesses of up to `most` tokens, each of which is right with probability `rate` if those before it are.
struct GuessOffer {
  double rate = 0;
  int64_t most = 0;
};
// How many tokens of each offer to verify in one step with `decoding` sequences, so that most tokens come out
// per second. All 0 if that is not clearly faster than without.
std::vector<int64_t> BestDepths(std::span<const GuessOffer> offers, int64_t decoding, const StepTimes& times);
// Likewise, of a model that drafts for all offers at once: one depth for all, each token of which takes
// `draft_s`.
int64_t BestDepth(std::span<const GuessOffer> offers, int64_t decoding, const StepTimes& times,
                  double draft_s);

// How much faster than without: below that, guesses are not made.
inline constexpr double kClearlyFaster = 1.04;
// Before any step was measured: how many times the speed of plain decoding one text has at the best depth,
// where a draft's step takes `draft_share` of a plain one. As optimistic about rows as StepTimes.
double PredictGain(const GuessOffer& offer, double draft_share);

}  // namespace celer
