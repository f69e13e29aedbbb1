// The loop of the peak probes. Only files with an ISA suffix include it; its function is static, so that each
// has a copy with its own instructions.
#pragma once

#include <stdint.h>

#if defined(__aarch64__)
#define CELER_ANY_VECTOR "w"
#else
#define CELER_ANY_VECTOR "v"
#endif

namespace celer::probe {

// `kChains` sums that do not wait for each other, sum = step(sum, a, b) each, where a step counts as that
// many multiply-adds. Returns the operations done.
template <int kChains, class Sum, class Factor, class Step>
static inline int64_t RunChains(int64_t iterations, int multiply_adds, Sum start, Factor a, Factor b,
                                const Step& step) {
  static_assert(kChains <= 24);  // as far as the loops are unrolled
  Sum sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) {
    sum[i] = start;
    __asm__ volatile("" : "+" CELER_ANY_VECTOR(sum[i]));  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = step(sum[i], a, b);
    // New factors, as far as the compiler knows.
    __asm__ volatile("" : "+" CELER_ANY_VECTOR(a), "+" CELER_ANY_VECTOR(b));
  }
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) __asm__ volatile("" : : CELER_ANY_VECTOR(sum[i]));
  return iterations * kChains * multiply_adds * 2;
}

#if defined(__aarch64__)
// As above with the sum as a factor, too (sum += sum * 0): where it is only added to, Neoverse-V1 mostly
// keeps to two of its four pipes, and the peak would depend on luck. 24 chains: four pipes of at most five
// cycles' latency, and a few more.
template <class Sum, class Factor, class Step>
static inline int64_t RunArmChains(int64_t iterations, int multiply_adds, Sum start, Factor zero,
                                   const Step& step) {
  return RunChains<24>(iterations, multiply_adds, start, zero, zero,
                       [&](Sum sum, Factor factor, Factor) { return step(sum, factor); });
}
#endif

}  // namespace celer::probe
