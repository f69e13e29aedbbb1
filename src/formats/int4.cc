#include "formats/int4.h"

#include <algorithm>

#include "formats/bfloat16.h"
#include "formats/block_io.h"
#include "formats/fit.h"
#include "formats/float16.h"

namespace celer {
namespace {

// Weights beyond the range of f16 do not occur in models; a file that holds them gets the largest f16.
uint16_t FiniteF16(float value) {
  return FloatToF16(std::clamp(value, -65504.0f, 65504.0f));
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
    const AffineFit fit = FitAffine(x, layout.group, 15);
    params[g].scale = FiniteF16(Bf16ToFloat(FloatToBf16(fit.scale)));
    const float scale = F16ToFloat(params[g].scale), inverse = ReciprocalOrZero(scale);
    params[g].min = FiniteF16(fit.min + 7.5f * (fit.scale - scale));  // the middle stays where it was
    const float min = F16ToFloat(params[g].min);
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
