// f16, bf16 and fp8: every value decodes, and encoding picks the nearest, ties to even.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "formats/bfloat16.h"
#include "formats/float16.h"
#include "formats/float8.h"

namespace celer {
namespace {

float FromBits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// The value of a small float format by its definition.
double Value(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

TEST(Float16, EveryValueDecodesAndRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = F16ToFloat(half);
    if ((bits & 0x7c00) == 0x7c00) {
      ASSERT_EQ(std::isnan(value), (bits & 0x3ff) != 0) << bits;
      ASSERT_EQ(std::isinf(value), (bits & 0x3ff) == 0) << bits;
    } else {
      ASSERT_EQ(value, Value(bits, 5, 10)) << bits;
    }
    ASSERT_EQ(std::signbit(value), bits >> 15 == 1);
    if (std::isnan(value))
      ASSERT_TRUE(std::isnan(F16ToFloat(FloatToF16(value))));
    else
      ASSERT_EQ(FloatToF16(value), half);
  }
}

TEST(Float16, RoundsHalfwayToEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {  // between each positive half and the next
    const double low = Value(bits, 5, 10), high = Value(bits + 1, 5, 10);
    const auto middle = static_cast<float>((low + high) / 2);  // exact: one more bit
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(FloatToF16(middle), even) << bits;
    ASSERT_EQ(FloatToF16(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(FloatToF16(std::nextafter(middle, 1e9f)), bits + 1) << bits;
  }
  EXPECT_EQ(FloatToF16(65519.996f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(FloatToF16(std::numeric_limits<float>::denorm_min()), 0);
}

#if defined(__aarch64__)
using CompilerHalf = __fp16;
#define CELER_COMPILER_HALF 1
#elif defined(__FLT16_MAX__) && __GNUC__ >= 13
using CompilerHalf = _Float16;
#define CELER_COMPILER_HALF 1
#endif
#ifdef CELER_COMPILER_HALF
TEST(Float16, AgreesWithTheCompiler) {
  std::mt19937 random(7);
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = FromBits(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(FloatToF16(value), std::bit_cast<uint16_t>(static_cast<CompilerHalf>(value))) << value;
  }
}
#endif

TEST(BFloat16, RoundTripsAndRoundsHalfwayToEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value))));
      continue;
    }
    ASSERT_EQ(FloatToBf16(value), bits);
    if (std::isinf(value)) continue;
    const uint32_t wide = bits << 16;
    ASSERT_EQ(FloatToBf16(FromBits(wide | 0x7fff)), bits);
    ASSERT_EQ(FloatToBf16(FromBits(wide | 0x8000)), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(FloatToBf16(FromBits(wide | 0x8001)), bits + 1);
  }
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(FromBits(0x7f800001)))));  // a NaN in the lost bits only
}

TEST(Float8, EveryValueDecodesAndRoundTrips) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = Fp8E4M3ToFloat(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(Fp8E4M3ToFloat(FloatToFp8E4M3(value))));
    } else {
      EXPECT_EQ(value, Value(bits, 4, 3)) << bits;
      EXPECT_EQ(FloatToFp8E4M3(value), bits);
    }
  }
}

TEST(Float8, RoundsHalfwayToEvenAndSaturates) {
  for (uint32_t bits = 0; bits < 0x7e; ++bits) {
    const auto middle = static_cast<float>((Value(bits, 4, 3) + Value(bits + 1, 4, 3)) / 2);
    EXPECT_EQ(FloatToFp8E4M3(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    EXPECT_EQ(FloatToFp8E4M3(-middle), (bits % 2 == 0 ? bits : bits + 1) | 0x80) << bits;
    EXPECT_EQ(FloatToFp8E4M3(std::nextafter(middle, 0.0f)), bits) << bits;
    EXPECT_EQ(FloatToFp8E4M3(std::nextafter(middle, 1e9f)), bits + 1) << bits;
  }
  EXPECT_EQ(FloatToFp8E4M3(1e6f), 0x7e);
  EXPECT_EQ(FloatToFp8E4M3(-std::numeric_limits<float>::infinity()), 0xfe);
}

}  // namespace
}  // namespace celer
