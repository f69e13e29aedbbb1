#include "engine/speculate/speculation_cost.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

namespace celer {
namespace {

constexpr int64_t kSure = 4;        // measurements
constexpr int64_t kForget = 100;    // steps
constexpr double kRowShare = 0.25;  // of a step, that one more row takes, where nothing else is known
constexpr double kHope = 0.6;
constexpr int64_t kMostRows = 512;  // drafted tokens of one step, of all sequences

// Kernels work on rows in fours or more, so sizes in between are not tried; the others are measured sooner.
bool IsTried(int64_t rows, int64_t decoding) {
  return rows % 4 == 0 || (decoding == 1 && rows == 2);
}

}  // namespace

double StepTimes::Size::Median() const {
  std::array<double, 7> sorted = last;
  const auto known = static_cast<size_t>(std::min<int64_t>(count, std::ssize(last)));
  const auto middle = sorted.begin() + static_cast<int64_t>((known - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<int64_t>(known));
  return *middle;
}

void StepTimes::Add(int64_t rows, double seconds) {
  Size& size = sizes_[rows];
  size.last[size.count % std::ssize(size.last)] = seconds;
  ++size.count;
  size.at = ++added_;
}

bool StepTimes::Counts(const Size& size) const {
  return size.count >= kSure || added_ - size.at < kForget;
}

double StepTimes::Of(int64_t rows) const {
  auto above = sizes_.lower_bound(rows);
  while (above != sizes_.end() && !Counts(above->second)) ++above;
  if (above != sizes_.end() && above->first == rows) return above->second.Median();
  auto below = std::make_reverse_iterator(sizes_.lower_bound(rows));
  while (below != sizes_.rend() && !Counts(below->second)) ++below;
  if (below == sizes_.rend()) return above == sizes_.end() ? 0 : above->second.Median();
  const double low = below->second.Median();
  const auto more = static_cast<double>(rows - below->first);
  if (above != sizes_.end())
    return low + (above->second.Median() - low) * more / static_cast<double>(above->first - below->first);
  // Beyond: rather better than up to there.
  const auto first = sizes_.begin();
  double per_row = kRowShare * low / static_cast<double>(below->first);
  if (first->first < below->first)
    per_row = kHope * std::max(0.0, low - first->second.Median()) /
              static_cast<double>(below->first - first->first);
  return low + per_row * more;
}

void Acceptance::Add(int64_t right, bool then_wrong) {
  const double seen = static_cast<double>(right) + (then_wrong ? 1 : 0);
  const double keep = std::exp(-seen / window_);
  right_ = right_ * keep + static_cast<double>(right);
  seen_ = seen_ * keep + seen;
}

std::vector<int64_t> BestDepths(std::span<const DraftOffer> offers, int64_t decoding,
                                const StepTimes& times) {
  std::vector<int64_t> depths(offers.size(), 0);
  const double plain = times.Of(decoding);
  if (plain <= 0) return depths;
  // Greedy: one token after the other, the most likely first. The gain of each further token only falls, so
  // the speed has one maximum.
  using Next = std::pair<double, size_t>;  // probability that it is right and all before it
  std::priority_queue<Next> next;
  for (size_t i = 0; i < offers.size(); ++i)
    if (offers[i].most > 0) next.emplace(offers[i].rate, i);
  const auto sequences = static_cast<double>(decoding);
  double tokens = sequences, best = kClearlyFaster * sequences / plain;
  std::vector<size_t> taken;
  size_t best_taken = 0;
  std::vector<int64_t> so_far(offers.size(), 0);
  while (!next.empty() && std::ssize(taken) < kMostRows) {
    const auto [probability, i] = next.top();
    next.pop();
    tokens += probability;
    taken.push_back(i);
    if (++so_far[i] < offers[i].most) next.emplace(probability * offers[i].rate, i);
    const int64_t rows = decoding + std::ssize(taken);
    if (!IsTried(rows, decoding) && !next.empty()) continue;
    if (const double speed = tokens / times.Of(rows); speed > best) {
      best = speed;
      best_taken = taken.size();
    }
  }
  for (size_t k = 0; k < best_taken; ++k) ++depths[taken[k]];
  return depths;
}

int64_t BestDepth(std::span<const DraftOffer> offers, int64_t decoding, const StepTimes& times,
                  double draft_s) {
  const double plain = times.Of(decoding);
  if (plain <= 0) return 0;
  int64_t most = 0, rows = decoding, depth = 0;
  for (const DraftOffer& offer : offers) most = std::max(most, offer.most);
  double tokens = static_cast<double>(decoding), best = kClearlyFaster * tokens / plain;
  for (int64_t d = 1; d <= most; ++d) {
    for (const DraftOffer& offer : offers)
      if (offer.most >= d) {
        ++rows;
        tokens += std::pow(offer.rate, static_cast<double>(d));
      }
    if (rows > decoding + kMostRows) break;
    const double speed = tokens / (times.Of(rows) + static_cast<double>(d) * draft_s);
    if (speed > best) {
      best = speed;
      depth = d;
    }
  }
  return depth;
}

double PredictGain(const DraftOffer& offer, double draft_share) {
  StepTimes times;
  times.Add(1, 1);  // the unit is a plain step
  double best = 0, tokens = 1;
  for (int64_t d = 1; d <= offer.most; ++d) {
    tokens += std::pow(offer.rate, static_cast<double>(d));
    best = std::max(best, tokens / (times.Of(1 + d) + static_cast<double>(d) * draft_share));
  }
  return best;
}

}  // namespace celer
