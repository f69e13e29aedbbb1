// IEEE half precision <-> float, by bits. Round to nearest even; overflow gives infinity; NaN stays NaN.
// The functions are static so that files built for a newer CPU keep their own copies (see CelerModule.cmake).
#pragma once

#include <cstdint>
#include <cstring>

namespace celer {

static inline float F16ToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  uint32_t bits;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    bits = sign | 0x7f800000u | (magnitude & 0x3ffu) << 13;
  } else if (magnitude >= 0x400u) {  // normal: rebias the exponent from 15 to 127
    bits = sign | ((magnitude << 13) + (112u << 23));
  } else {  // subnormal: magnitude * 2^-24, exact in float
    float value = static_cast<float>(magnitude) * 0x1p-24f;
    std::memcpy(&bits, &value, sizeof(bits));
    bits |= sign;
  }
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

static inline uint16_t FloatToF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 puts the unit 2^-24 in the last place
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof(shifted));
    shifted += 0.5f;
    uint32_t shifted_bits;
    std::memcpy(&shifted_bits, &shifted, sizeof(shifted_bits));
    return static_cast<uint16_t>(sign | (shifted_bits - 0x3f000000u));
  }
  const uint32_t even = magnitude >> 13 & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xfffu + even) >> 13));
}

}  // namespace celer
