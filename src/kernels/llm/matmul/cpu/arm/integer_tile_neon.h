// What the integer tile kernels of NEON share. In an unnamed namespace: files built for several instruction
// sets include this, and each keeps its own copy.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

// Arrays of registers stay in registers only if every loop over them is unrolled.
#define CELER_UNROLL _Pragma("GCC unroll 16")

namespace celer::arm {
namespace {

constexpr int kRows = 8;

// Volatile, so that the compiler neither keeps the value in a register nor copies it from one.
inline int32x4_t LoadFresh(const float* p) {
  int32x4_t v;
  asm volatile("ldr %q0, [%1]" : "=w"(v) : "r"(p));
  return v;
}

// Where things stand in a super-block of values V.
template <class V, int kSubCount, bool kMin>
struct SuperFormat {
  using Values = V;
  static constexpr bool kHasMin = kMin;
  static constexpr int kSubs = kSubCount;
  static constexpr int kScales = 2 * kRows * (kMin ? 2 : 1);
  static constexpr int kMins = kScales + kSubs * kRows;
  static constexpr int kHeader = kMins + (kMin ? kSubs * kRows : 0);
  static constexpr int kBytes = kHeader + 8 * V::kBytes;
};

}  // namespace
}  // namespace celer::arm
