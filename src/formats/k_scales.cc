#include "formats/k_scales.h"

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

void PackKScales(const uint8_t scale[8], const uint8_t min[8], uint8_t packed[12]) {
  for (int i = 0; i < 4; ++i) {
    packed[i] = static_cast<uint8_t>(scale[i] | (scale[i + 4] >> 4) << 6);
    packed[i + 4] = static_cast<uint8_t>(min[i] | (min[i + 4] >> 4) << 6);
    packed[i + 8] = static_cast<uint8_t>((scale[i + 4] & 15) | (min[i + 4] & 15) << 4);
  }
}

}  // namespace celer
