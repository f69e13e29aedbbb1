#include "formats/fit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace celer {
namespace {

// Sums run in 8 lanes, as two vectors of the compiler's own kind: no permission to reorder floating-point
// arithmetic is needed, and every processor has vectors of 16 bytes.
constexpr int kLanes = 8;
using Vec = float __attribute__((vector_size(16)));

inline Vec Load(const float* x) {
  Vec out;
  std::memcpy(&out, x, sizeof(out));
  return out;
}

inline Vec All(float value) {
  return Vec{value, value, value, value};
}

double Sum(const Vec& a, const Vec& b) {
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(a[i]) + static_cast<double>(b[i]);
  return sum;
}

// With q = round((x - min) / scale) in low..high, each term times its importance if there is one.
struct Moments {
  double q, qq, qx;
};
template <bool kImportance>
Moments MomentsOf(const float* x, const float* importance, int64_t n, float scale, float min, float low,
                  float high) {
  const Vec inverse = All(1.0f / scale), origin = All(min), floor = All(low), ceiling = All(high);
  const Vec magic = All(0x1.8p23f);  // adding and subtracting it rounds to nearest, for |value| < 2^22
  Vec sum_q[2] = {}, sum_qq[2] = {}, sum_qx[2] = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int half = 0; half < 2; ++half) {
      const Vec value = Load(x + i + 4 * half);
      Vec q = (value - origin) * inverse;
      q = q > floor ? q : floor;  // NaN becomes low
      q = q < ceiling ? q : ceiling;
      q = (q + magic) - magic;
      Vec weighted = q;
      if constexpr (kImportance) weighted *= Load(importance + i + 4 * half);
      sum_q[half] += weighted;
      sum_qq[half] += weighted * q;
      sum_qx[half] += weighted * value;
    }
  }
  return {Sum(sum_q[0], sum_q[1]), Sum(sum_qq[0], sum_qq[1]), Sum(sum_qx[0], sum_qx[1])};
}

constexpr int kFiner = 8, kNarrower = 3, kPolish = 2;  // grids that are tried

template <bool kImportance>
AffineFit Fit(const float* x, const float* importance, int64_t n, int levels, bool non_positive,
              bool thorough) {
  Range range = RangeOf(x, n);
  if (non_positive) range = {std::min(range.low, 0.0f), std::max(range.high, 0.0f)};
  const AffineFit plain{(range.high - range.low) / static_cast<float>(levels), range.low};
  if (!(plain.scale > 0) || !std::isfinite(plain.scale) || !std::isfinite(1.0f / plain.scale)) return plain;

  Vec lanes_x[2] = {}, lanes_xx[2] = {}, lanes_w[2] = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int half = 0; half < 2; ++half) {
      const Vec value = Load(x + i + 4 * half);
      Vec weighted = value;
      if constexpr (kImportance) {
        const Vec weight = Load(importance + i + 4 * half);
        lanes_w[half] += weight;
        weighted *= weight;
      }
      lanes_x[half] += weighted;
      lanes_xx[half] += weighted * value;
    }
  }
  const double sum_x = Sum(lanes_x[0], lanes_x[1]), sum_xx = Sum(lanes_xx[0], lanes_xx[1]);
  const double count = kImportance ? Sum(lanes_w[0], lanes_w[1]) : static_cast<double>(n);
  if (!(count > 0)) return plain;
  // Squared error of scale * q + min for the q behind the moments.
  const auto error = [&](const Moments& m, double scale, double min) {
    return sum_xx - 2 * scale * m.qx - 2 * min * sum_x + scale * scale * m.qq + 2 * scale * min * m.q +
           count * min * min;
  };

  AffineFit best = plain;
  double best_error = HUGE_VAL;
  // Assigns the values to a grid, then solves for scale and minimum.
  const auto attempt = [&](float scale, float min) {
    const Moments m = MomentsOf<kImportance>(x, importance, n, scale, min, 0, static_cast<float>(levels));
    const double determinant = count * m.qq - m.q * m.q;
    if (!(determinant > 0)) return;
    double fitted = (count * m.qx - m.q * sum_x) / determinant;
    double offset = (sum_x - fitted * m.q) / count;
    if (non_positive && offset > 0) offset = 0, fitted = m.qx / m.qq;
    if (!(fitted > 0)) return;
    if (const double e = error(m, fitted, offset); e < best_error)
      best = {static_cast<float>(fitted), static_cast<float>(offset)}, best_error = e;
  };
  {
    const Moments m =
        MomentsOf<kImportance>(x, importance, n, plain.scale, plain.min, 0, static_cast<float>(levels));
    best_error = error(m, plain.scale, plain.min);
  }
  const float span = range.high - range.low;
  const auto narrower = [&](float shrink) {  // clips both ends
    attempt((span - shrink) / static_cast<float>(levels),
            range.low + (non_positive && range.low == 0 ? 0.0f : 0.5f * shrink));
  };
  if (!thorough) {
    for (int step = 0; step <= 6; ++step) narrower(0.03f * static_cast<float>(step) * span);
    return best;
  }
  // Grids from the smallest value on, with a little more or less than `levels` steps to the largest: each
  // rounds a few values another way.
  for (int step = -kFiner; step <= kFiner; ++step)
    attempt(span / (static_cast<float>(levels) + static_cast<float>(step) / kFiner), range.low);
  for (int step = 1; step <= kNarrower; ++step) narrower(0.06f * static_cast<float>(step) * span);
  for (int i = 0; i < kPolish; ++i) attempt(best.scale, best.min);
  return best;
}

}  // namespace

Range RangeOf(const float* x, int64_t n) {
  Vec low = Load(x), high = low;
  for (int64_t i = 4; i < n; i += 4) {
    const Vec value = Load(x + i);
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
  return {std::min(std::min(low[0], low[1]), std::min(low[2], low[3])),
          std::max(std::max(high[0], high[1]), std::max(high[2], high[3]))};
}

float AbsMax(const float* x, int64_t n) {
  uint32_t largest = 0;  // without the sign, floats compare as their bits
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return std::bit_cast<float>(largest);
}

AffineFit FitAffine(const float* x, int64_t n, int levels, const float* importance) {
  // Without importance this runs while a model is loaded, and a GPU does the same.
  return importance ? Fit<true>(x, importance, n, levels, false, true)
                    : Fit<false>(x, nullptr, n, levels, false, false);
}

AffineFit FitAffineNonPositive(const float* x, int64_t n, int levels, const float* importance) {
  return importance ? Fit<true>(x, importance, n, levels, true, true)
                    : Fit<false>(x, nullptr, n, levels, true, true);
}

float FitMin(const float* x, int64_t n, int levels, float scale, float min, const float* importance) {
  if (!(scale > 0) || !std::isfinite(1.0f / scale)) return min;
  const auto top = static_cast<float>(levels);
  const Moments m = importance ? MomentsOf<true>(x, importance, n, scale, min, 0, top)
                               : MomentsOf<false>(x, nullptr, n, scale, min, 0, top);
  double sum = 0, count = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double weight = importance ? importance[i] : 1;
    sum += weight * x[i];
    count += weight;
  }
  const double best = (sum - static_cast<double>(scale) * m.q) / count;
  return std::isfinite(best) ? static_cast<float>(best) : min;
}

float FitSymmetric(const float* x, int64_t n, int half, const float* importance) {
  const Range range = RangeOf(x, n);
  const float extreme = -range.low > range.high ? range.low : range.high;
  const float start = extreme / -static_cast<float>(half);
  if (start == 0 || !std::isfinite(start) || !std::isfinite(1.0f / start)) return start;
  float best = start;
  // For fixed q the best scale is sum(qx) / sum(qq), and it lowers the error by sum(qx)^2 / sum(qq).
  double best_gain = -1;
  const int narrower = importance ? 9 : 3;
  for (int step = -narrower; step <= 4; ++step) {  // the last one polishes the best
    const float scale = step == 4 ? best : start * (1.0f + 0.03f * static_cast<float>(step));
    const auto low = -static_cast<float>(half), high = static_cast<float>(half - 1);
    const Moments m = importance ? MomentsOf<true>(x, importance, n, scale, 0, low, high)
                                 : MomentsOf<false>(x, nullptr, n, scale, 0, low, high);
    if (!(m.qq > 0)) continue;
    const double gain = m.qx * m.qx / m.qq;
    if (gain > best_gain) best_gain = gain, best = static_cast<float>(m.qx / m.qq);
  }
  return best;
}

}  // namespace celer
