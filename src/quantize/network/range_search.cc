// Ranges that clip outliers: by the KL divergence of histograms (entropy calibration), and by squared error.
#include <algorithm>
#include <cmath>
#include <functional>

#include "quantize/network/observer.h"

namespace celer::ptq {
namespace {

// The KL divergence of the distribution clipped to [begin, end), with the outliers added to its edges, from
// the same quantized to `levels` steps. Empty bins stay empty in both.
double Divergence(std::span<const uint64_t> bins, int64_t begin, int64_t end, int64_t levels,
                  std::vector<double>& before, std::vector<double>& after) {
  const auto size = static_cast<size_t>(end - begin);
  before.assign(size, 0.0);
  after.assign(size, 0.0);
  for (size_t i = 0; i < size; ++i) before[i] = static_cast<double>(bins[static_cast<size_t>(begin) + i]);
  for (size_t level = 0; level < static_cast<size_t>(levels); ++level) {
    const size_t from = level * size / static_cast<size_t>(levels),
                 to = (level + 1) * size / static_cast<size_t>(levels);
    double sum = 0, used = 0;
    for (size_t i = from; i < to; ++i) {
      sum += before[i];
      used += before[i] > 0 ? 1 : 0;
    }
    for (size_t i = from; i < to; ++i) after[i] = before[i] > 0 ? sum / used : 0;
  }
  double total_after = 0;
  for (const double count : after) total_after += count;
  for (int64_t i = 0; i < begin; ++i) before[0] += static_cast<double>(bins[i]);
  for (size_t i = static_cast<size_t>(end); i < bins.size(); ++i)
    before[size - 1] += static_cast<double>(bins[i]);
  double total = 0;
  for (const double count : before) total += count;
  if (total == 0 || total_after == 0) return 1e300;
  constexpr double kAlmostNone = 1e-9;
  double sum = 0;
  for (size_t i = 0; i < size; ++i) {
    if (before[i] == 0) continue;
    const double p = before[i] / total, q = std::max(after[i] / total_after, kAlmostNone);
    sum += p * std::log(p / q);
  }
  return sum;
}

// The end for which the cost is least; ties go to the last, which is the widest.
int64_t BestEnd(int64_t least, int64_t most, const std::function<double(int64_t)>& cost) {
  if (least >= most) return most;
  const int64_t step = std::max<int64_t>(1, (most - least) / 256);
  int64_t best = most;
  double best_cost = cost(most);
  for (int64_t end = most - step; end >= least; end -= step)
    if (const double now = cost(end); now < best_cost) best_cost = now, best = end;
  return best;
}

}  // namespace

Range KlRange(const Histogram& histogram, const Range& all, bool symmetric) {
  const auto bins = static_cast<int64_t>(histogram.bins.size());
  const auto edge = [&](double x) {
    return static_cast<int64_t>(std::ceil(std::abs(x) / histogram.width - 1e-9));
  };
  std::vector<double> before, after;
  if (symmetric) {
    // Both signs are one distribution of magnitudes with 128 levels.
    std::vector<uint64_t> folded(static_cast<size_t>(histogram.zero), 0);
    for (int64_t i = 0; i < bins; ++i) {
      const int64_t at = i >= histogram.zero ? i - histogram.zero : histogram.zero - 1 - i;
      folded[at] += histogram.bins[i];
    }
    const int64_t most = std::max(edge(all.low), edge(all.high));
    const int64_t end =
        BestEnd(128, most, [&](int64_t e) { return Divergence(folded, 0, e, 128, before, after); });
    const double top = static_cast<double>(end) * histogram.width;
    return {std::max(all.low, -top), std::min(all.high, top)};
  }
  int64_t low = edge(all.low), high = edge(all.high);
  const auto cost = [&](int64_t l, int64_t h) {
    return Divergence(histogram.bins, histogram.zero - l, histogram.zero + h, 256, before, after);
  };
  const int64_t lowest = low;
  high = BestEnd(std::max<int64_t>(256 - lowest, 1), high, [&](int64_t h) { return cost(lowest, h); });
  if (lowest > 0)
    low = BestEnd(std::max<int64_t>(256 - high, 1), lowest, [&](int64_t l) { return cost(l, high); });
  return {std::max(all.low, -static_cast<double>(low) * histogram.width),
          std::min(all.high, static_cast<double>(high) * histogram.width)};
}

Range MseRange(const Histogram& histogram, const Range& all, ActivationType type, bool power_of_two) {
  constexpr int kSteps = 80;  // down to a fifth
  const auto error = [&](const Range& range) {
    const Grid grid = GridFor(range, type, power_of_two);
    double sum = 0;
    for (size_t i = 0; i < histogram.bins.size(); ++i) {
      if (histogram.bins[i] == 0) continue;
      const double x = histogram.center(static_cast<int64_t>(i)), miss = x - grid.Round(x);
      sum += miss * miss * static_cast<double>(histogram.bins[i]);
    }
    return sum;
  };
  Range best = all;
  double least = error(all);
  const auto attempt = [&](const Range& range) {
    if (const double now = error(range); now < least) least = now, best = range;
  };
  const auto share = [](int step) { return 1 - 0.01 * step; };
  if (type == ActivationType::kI8Symmetric) {
    for (int i = 1; i <= kSteps; ++i) attempt({all.low * share(i), all.high * share(i)});
    return best;
  }
  for (int round = 0; round < 2; ++round) {
    if (all.high > 0) {
      const double low = best.low;
      for (int i = 1; i <= kSteps; ++i) attempt({low, all.high * share(i)});
    }
    if (all.low < 0) {
      const double high = best.high;
      for (int i = 1; i <= kSteps; ++i) attempt({all.low * share(i), high});
    }
  }
  return best;
}

}  // namespace celer::ptq
