// IEEE half precision <-> float, by bits. Round to nearest even; overflow gives infinity; NaN stays NaN.
// The functions are static so that files built for a newer CPU keep their own copies (see CelerModule.cmake).
#pragma once

#include <cstdint>
#include <cstring>

namespace celer {

static inline float F16ToFloat(uint16_t half) {
#if defined(__aarch64__)
  __fp16 value;  // every such processor converts
  std::memcpy(&value, &half, sizeof(value));
  return static_cast<float>(value);
#else
  // The half's bits at a float's place are the value times 2^-112, also for subnormals; no branches.
  const uint32_t magnitude = half & 0x7fffu;
  uint32_t bits = magnitude << 13;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  value *= 0x1p112f;
  std::memcpy(&bits, &value, sizeof(bits));
  bits |= magnitude >= 0x7c00u ? 0x7f800000u : 0u;  // infinity, NaN
  bits |= static_cast<uint32_t>(half & 0x8000u) << 16;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

static inline uint16_t FloatToF16(float value) {
#if defined(__aarch64__)
  const auto narrow = static_cast<__fp16>(value);
  uint16_t half;
  std::memcpy(&half, &narrow, sizeof(half));
  return half;
#else
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
#endif
}

}  // namespace celer
