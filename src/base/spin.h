// Waiting awake for another thread, for a bounded time, before parking.
#pragma once

#include <sched.h>

#include <chrono>

namespace celer {

inline void CpuRelax() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` does nothing on most cores; this one waits about 10 ns
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// True as soon as ready(), false after `limit`. After a while without news others get the CPU between two looks: the
// thread that is waited for may be one of them. Without a limit (there are more threads than CPUs) a few looks, each
// after the others had their turn.
template <class Ready>
bool SpinUntil(const Ready& ready, std::chrono::nanoseconds limit) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kBusy{20};
  constexpr int kYieldsWhenCrowded = 8, kLooks = 32;
  if (limit <= std::chrono::nanoseconds::zero()) {
    for (int i = 0; i < kYieldsWhenCrowded; ++i) {
      if (ready()) return true;
      sched_yield();
    }
    return ready();
  }
  const Clock::time_point start = Clock::now();
  for (;;) {
    for (int i = 0; i < kLooks; ++i) {
      if (ready()) return true;
      CpuRelax();
    }
    const auto waited = Clock::now() - start;
    if (waited > limit) return ready();
    if (waited > kBusy) sched_yield();
  }
}

}  // namespace celer
