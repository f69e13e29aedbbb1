// How far one distribution over the vocabulary is from another.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "celer/eval.h"

namespace celer {
namespace {

constexpr size_t kTopFive = 5;

// The indices of the largest values, largest first; of equal ones the first.
std::array<size_t, kTopFive> TopFive(std::span<const float> values) {
  std::array<size_t, kTopFive> top;
  size_t held = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (held == kTopFive && !(values[i] > values[top[kTopFive - 1]])) continue;
    size_t at = held < kTopFive ? held++ : kTopFive - 1;
    for (; at > 0 && values[i] > values[top[at - 1]]; --at) top[at] = top[at - 1];
    top[at] = i;
  }
  for (; held < kTopFive; ++held) top[held] = values.size();  // a vocabulary of fewer than five
  return top;
}

}  // namespace

bool LogSoftmax(std::span<float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(largest)) return false;
  double sum = 0;
  for (const float v : logits) sum += std::exp(v - largest);
  if (!std::isfinite(sum)) return false;
  const auto shift = static_cast<float>(largest + std::log(sum));
  for (float& v : logits) v -= shift;
  return true;
}

Agreement CompareDistributions(std::span<const float> exact, std::span<const float> other) {
  CELER_CHECK_EQ(exact.size(), other.size());
  Agreement out;
  for (size_t i = 0; i < exact.size(); ++i) {
    const float p = std::exp(exact[i]);
    if (p > 0) out.divergence += double{p} * (double{exact[i]} - other[i]);
  }
  out.divergence = std::max(out.divergence, 0.0);  // rounding can leave it a hair below
  const auto mine = TopFive(exact), theirs = TopFive(other);
  out.same_top = mine[0] == theirs[0];
  for (const size_t token : mine)
    out.shared_top5 += std::find(theirs.begin(), theirs.end(), token) != theirs.end();
  return out;
}

void Divergence::Add(const Agreement& at) {
  values.push_back(static_cast<float>(at.divergence));
  same_top += at.same_top;
  shared_top5 += at.shared_top5;
}

double Divergence::Mean() const {
  double sum = 0;
  for (const float v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

double Divergence::Max() const {
  return *std::max_element(values.begin(), values.end());
}

double Divergence::Percentile(double percent) const {
  std::vector<float> sorted = values;
  const auto rank = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(sorted.size())));
  const auto at = sorted.begin() + static_cast<int64_t>(std::clamp<size_t>(rank, 1, sorted.size()) - 1);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

double Divergence::SameTop() const {
  return static_cast<double>(same_top) / static_cast<double>(values.size());
}

double Divergence::SharedTop5() const {
  return static_cast<double>(shared_top5) / static_cast<double>(kTopFive * values.size());
}

}  // namespace celer
