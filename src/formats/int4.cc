#include "formats/int4.h"

#include <algorithm>

#include "formats/block_io.h"
#include "formats/float16.h"

namespace celer {
namespace {

// Weights beyond the range of f16 do not occur in models; a file that holds them gets the largest f16.
uint16_t FiniteF16(float value) {
  return FloatToF16(std::clamp(value, -65504.0f, 65504.0f));
}

// Rounded to f16 such that the grid still reaches the group's ends: the scale is never rounded down.
uint16_t ScaleUp(float scale) {
  uint16_t half = FiniteF16(scale);
  if (F16ToFloat(half) < scale && half < 0x7bff) ++half;
  return half;
}

// Sum of squared misses of the grid min + scale * (0..15).
double GridError(const float* x, int64_t n, float scale, float min) {
  const float inverse = ReciprocalOrZero(scale);
  double error = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double miss = static_cast<double>(RoundClamped((x[i] - min) * inverse, 0, 15)) * scale + min - x[i];
    error += miss * miss;
  }
  return error;
}

}  // namespace

std::optional<Int4Layout> Int4Layout::Make(int64_t rows, int64_t cols, int64_t group) {
  if (group != 32 && group != 64 && group != 128) return std::nullopt;
  if (rows < 0 || cols <= 0 || cols % group != 0) return std::nullopt;
  return Int4Layout{rows, cols, group};
}

void EncodeInt4Row(const Int4Layout& layout, const float* row, uint8_t* values, Int4Group* params) {
  for (int64_t g = 0; g < layout.groups_per_row(); ++g) {
    const float* x = row + g * layout.group;
    const auto [low, high] = std::minmax_element(x, x + layout.group);
    // The plain grid spans the group; slightly shrunken ones clip the ends and often lose less in all.
    Int4Group best{ScaleUp((*high - *low) / 15.0f), FiniteF16(*low)};
    double best_error = GridError(x, layout.group, F16ToFloat(best.scale), F16ToFloat(best.min));
    for (int step = 1; step <= 6; ++step) {
      const float shrink = 0.03f * static_cast<float>(step) * (*high - *low);
      const Int4Group trial{FiniteF16((*high - *low - shrink) / 15.0f), FiniteF16(*low + 0.5f * shrink)};
      const double error = GridError(x, layout.group, F16ToFloat(trial.scale), F16ToFloat(trial.min));
      if (error < best_error) best = trial, best_error = error;
    }
    params[g] = best;
    const float min = F16ToFloat(best.min);
    const float inverse = ReciprocalOrZero(F16ToFloat(best.scale));
    uint8_t* packed = values + g * layout.group / 2;
    for (int64_t i = 0; i < layout.group / 2; ++i) {
      const int even = RoundClamped((x[2 * i] - min) * inverse, 0, 15);
      const int odd = RoundClamped((x[2 * i + 1] - min) * inverse, 0, 15);
      packed[i] = static_cast<uint8_t>(even | odd << 4);
    }
  }
}

void DecodeInt4Row(const Int4Layout& layout, const uint8_t* values, const Int4Group* params, float* out) {
  for (int64_t g = 0; g < layout.groups_per_row(); ++g) {
    const float scale = F16ToFloat(params[g].scale);
    const float min = F16ToFloat(params[g].min);
    const uint8_t* packed = values + g * layout.group / 2;
    float* group = out + g * layout.group;
    for (int64_t i = 0; i < layout.group / 2; ++i) {
      group[2 * i] = static_cast<float>(packed[i] & 15) * scale + min;
      group[2 * i + 1] = static_cast<float>(packed[i] >> 4) * scale + min;
    }
  }
}

}  // namespace celer
