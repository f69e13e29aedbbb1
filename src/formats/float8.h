// fp8 E4M3 (the "fn" kind: no infinity, 0x7f is NaN, largest 448) <-> float. Static: see float16.h.
#pragma once

#include <cstdint>
#include <cstring>

namespace celer {

static inline float Fp8E4M3ToFloat(uint8_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x80u) << 24;
  const uint32_t magnitude = value & 0x7fu;
  uint32_t bits;
  if (magnitude == 0x7fu) {
    bits = 0x7fc00000u;
  } else if (magnitude >= 8u) {  // normal: rebias the exponent from 7 to 127
    bits = (magnitude << 20) + (120u << 23);
  } else {  // subnormal: magnitude * 2^-9
    const float small = static_cast<float>(magnitude) * 0x1p-9f;
    std::memcpy(&bits, &small, sizeof(bits));
  }
  bits |= sign;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

// Round to nearest even, saturating at 448 as inference does (infinity becomes 448 too).
static inline uint8_t FloatToFp8E4M3(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // 448 and above
  if (magnitude < 0x3c800000u) {  // below 2^-6: adding 2^14 puts the unit 2^-9 in the last place
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof(shifted));
    shifted += 16384.0f;
    uint32_t shifted_bits;
    std::memcpy(&shifted_bits, &shifted, sizeof(shifted_bits));
    return static_cast<uint8_t>(sign | (shifted_bits - 0x46800000u));
  }
  const uint32_t even = magnitude >> 20 & 1u;
  return static_cast<uint8_t>(sign | ((magnitude - (120u << 23) + 0x7ffffu + even) >> 20));
}

}  // namespace celer
