#include "formats/q8_0.h"

#include "formats/fit.h"
#include "formats/float16.h"

namespace celer {

void BlockQ8_0::Encode(const float* x, const float* /*importance*/) {
  const float scale = AbsMax(x, kElements) / 127.0f, inverse = ReciprocalOrZero(scale);
  d = FloatToF16(scale);
  for (int j = 0; j < kElements; ++j) qs[j] = static_cast<int8_t>(RoundClamped(x[j] * inverse, -127, 127));
}

}  // namespace celer
