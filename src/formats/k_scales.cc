#include "formats/k_scales.h"

#include <algorithm>
#include <cmath>

#include "formats/block_io.h"

namespace celer {

KScales UnpackKScales(const uint8_t packed[12]) {
  KScales out;
  for (int i = 0; i < 4; ++i) {
    out.scale[i] = packed[i] & 63;
    out.min[i] = packed[i + 4] & 63;
    out.scale[i + 4] = static_cast<uint8_t>((packed[i + 8] & 15) | (packed[i] >> 6) << 4);
    out.min[i + 4] = static_cast<uint8_t>(packed[i + 8] >> 4 | (packed[i + 4] >> 6) << 4);
  }
  return out;
}

void PackKScales(const KScales& scales, uint8_t packed[12]) {
  for (int i = 0; i < 4; ++i) {
    packed[i] = static_cast<uint8_t>(scales.scale[i] | (scales.scale[i + 4] >> 4) << 6);
    packed[i + 4] = static_cast<uint8_t>(scales.min[i] | (scales.min[i + 4] >> 4) << 6);
    packed[i + 8] = static_cast<uint8_t>((scales.scale[i + 4] & 15) | (scales.min[i + 4] & 15) << 4);
  }
}

namespace {

double AffineError(const float* x, int n, int levels, AffineFit fit) {
  const float inverse = ReciprocalOrZero(fit.scale);
  double error = 0;
  for (int i = 0; i < n; ++i) {
    const int q = RoundClamped((x[i] + fit.min) * inverse, 0, levels);
    const double miss = static_cast<double>(fit.scale) * q - fit.min - x[i];
    error += miss * miss;
  }
  return error;
}

}  // namespace

AffineFit FitAffine(const float* x, int n, int levels) {
  const auto [low, high] = std::minmax_element(x, x + n);
  const float min = std::min(*low, 0.0f);
  const float max = std::max(*high, 0.0f);
  AffineFit best{(max - min) / static_cast<float>(levels), -min};
  if (best.scale == 0 || !std::isfinite(best.scale)) return best;
  double best_error = AffineError(x, n, levels, best);
  // From slightly narrower and wider grids: assign the values, then solve for scale and minimum.
  for (int step = -4; step <= 4; ++step) {
    const float scale = best.scale * (1.0f + 0.05f * static_cast<float>(step));
    const float inverse = 1.0f / scale;
    double sum_q = 0, sum_qq = 0, sum_x = 0, sum_qx = 0;
    for (int i = 0; i < n; ++i) {
      const double q = RoundClamped((x[i] - min) * inverse, 0, levels);
      sum_q += q, sum_qq += q * q, sum_x += x[i], sum_qx += q * static_cast<double>(x[i]);
    }
    const double determinant = n * sum_qq - sum_q * sum_q;
    if (determinant <= 0) continue;
    double fitted = (n * sum_qx - sum_q * sum_x) / determinant;
    double offset = (fitted * sum_q - sum_x) / n;
    if (offset < 0) offset = 0, fitted = sum_qq > 0 ? sum_qx / sum_qq : 0;
    if (fitted <= 0) continue;
    const AffineFit fit{static_cast<float>(fitted), static_cast<float>(offset)};
    if (const double error = AffineError(x, n, levels, fit); error < best_error)
      best = fit, best_error = error;
  }
  return best;
}

float FitSymmetric(const float* x, int n, int half) {
  float extreme = 0;
  for (int i = 0; i < n; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  const float start = extreme / -static_cast<float>(half);
  if (start == 0 || !std::isfinite(start)) return start;
  float best = start;
  // Least squares: for fixed q the best scale is sum(qx)/sum(qq), and it lowers the error by
  // sum(qx)^2/sum(qq).
  double best_gain = -1;
  for (int step = -4; step <= 4; ++step) {
    const float inverse = 1.0f / (start * (1.0f + 0.025f * static_cast<float>(step)));
    double sum_qq = 0, sum_qx = 0;
    for (int i = 0; i < n; ++i) {
      const double q = RoundClamped(x[i] * inverse, -half, half - 1);
      sum_qq += q * q, sum_qx += q * static_cast<double>(x[i]);
    }
    if (sum_qq <= 0) continue;
    const double gain = sum_qx * sum_qx / sum_qq;
    if (gain > best_gain) best_gain = gain, best = static_cast<float>(sum_qx / sum_qq);
  }
  return best;
}

}  // namespace celer
