#include "formats/k_quantize.h"

#include <algorithm>
#include <cmath>

#include "formats/block_io.h"
#include "formats/fit.h"
#include "formats/float16.h"

namespace celer {

KAffineBlock QuantizeKAffine(const float* x, const float* importance, int groups, int levels, int top) {
  const int size = kKElements / groups;
  AffineFit fits[kMaxKGroups];
  float max_scale = 0, max_min = 0;
  for (int g = 0; g < groups; ++g) {
    fits[g] = FitAffineNonPositive(x + size * g, size, levels, importance ? importance + size * g : nullptr);
    max_scale = std::max(max_scale, fits[g].scale);
    max_min = std::max(max_min, -fits[g].min);
  }
  KAffineBlock out = {};
  out.d = FloatToF16(max_scale / static_cast<float>(top));
  out.dmin = FloatToF16(max_min / static_cast<float>(top));
  const float d = F16ToFloat(out.d);
  const float dmin = F16ToFloat(out.dmin);
  for (int g = 0; g < groups; ++g) {
    out.scale[g] = static_cast<uint8_t>(RoundClamped(fits[g].scale * ReciprocalOrZero(d), 0, top));
    // The scale was rounded: the minimum makes up for it.
    const float scale = d * static_cast<float>(out.scale[g]);
    const float best =
        FitMin(x + size * g, size, levels, scale, fits[g].min, importance ? importance + size * g : nullptr);
    out.min[g] = static_cast<uint8_t>(RoundClamped(-best * ReciprocalOrZero(dmin), 0, top));
    const float inverse = ReciprocalOrZero(scale);
    const float min = dmin * static_cast<float>(out.min[g]);
    for (int i = size * g; i < size * (g + 1); ++i)
      out.q[i] = static_cast<uint8_t>(RoundClamped((x[i] + min) * inverse, 0, levels));
  }
  return out;
}

KSymmetricBlock QuantizeKSymmetric(const float* x, const float* importance, int half, int top) {
  constexpr int kSize = kKElements / kMaxKGroups;
  float scales[kMaxKGroups];
  float extreme = 0;
  for (int g = 0; g < kMaxKGroups; ++g) {
    scales[g] = FitSymmetric(x + kSize * g, kSize, half, importance ? importance + kSize * g : nullptr);
    if (std::fabs(scales[g]) > std::fabs(extreme)) extreme = scales[g];
  }
  KSymmetricBlock out = {};
  out.d = FloatToF16(extreme / -static_cast<float>(top));  // the largest scale becomes -top
  const float d = F16ToFloat(out.d);
  for (int g = 0; g < kMaxKGroups; ++g) {
    out.scale[g] = static_cast<int8_t>(RoundClamped(scales[g] * ReciprocalOrZero(d), -top, top - 1));
    const float inverse = ReciprocalOrZero(d * static_cast<float>(out.scale[g]));
    for (int i = kSize * g; i < kSize * (g + 1); ++i)
      out.q[i] = static_cast<int8_t>(RoundClamped(x[i] * inverse, -half, half - 1));
  }
  return out;
}

}  // namespace celer
