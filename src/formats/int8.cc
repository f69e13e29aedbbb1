#include "formats/int8.h"

#include "formats/block_io.h"
#include "formats/fit.h"

namespace celer {

std::optional<Int8Layout> Int8Layout::Make(int64_t rows, int64_t cols, int64_t group) {
  if (group == 0) group = cols;
  if (rows < 0 || cols <= 0 || group <= 0 || cols % group != 0) return std::nullopt;
  return Int8Layout{rows, cols, group};
}

void EncodeInt8Row(const Int8Layout& layout, const float* row, int8_t* values, float* scales) {
  for (int64_t g = 0; g < layout.groups_per_row(); ++g) {
    const float* x = row + g * layout.group;
    int8_t* q = values + g * layout.group;
    const float largest = AbsMax(x, layout.group);
    scales[g] = largest / 127.0f;
    // A division per group and not x / scale per element: the reciprocal's rounding moves no value by more
    // than 2^-22 of a step.
    const float inverse = largest == 0 ? 0.0f : 127.0f / largest;
    for (int64_t i = 0; i < layout.group; ++i)
      q[i] = static_cast<int8_t>(RoundClamped(x[i] * inverse, -127, 127));
  }
}

void DecodeInt8Row(const Int8Layout& layout, const int8_t* values, const float* scales, float* out) {
  for (int64_t g = 0; g < layout.groups_per_row(); ++g)
    for (int64_t i = g * layout.group; i < (g + 1) * layout.group; ++i)
      out[i] = static_cast<float>(values[i]) * scales[g];
}

}  // namespace celer
