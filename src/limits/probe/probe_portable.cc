// Probe loops for any CPU, in the compiler's vector extension.
#include <cstring>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {
namespace {

using Words = uint64_t __attribute__((vector_size(16)));
using Floats = float __attribute__((vector_size(16)));

// The compiler takes the value for a new one from here on.
inline void Hide(Floats& value) {
#if defined(__aarch64__)
  __asm__ volatile("" : "+w"(value));
#elif defined(__x86_64__)
  __asm__ volatile("" : "+x"(value));
#else
  __asm__ volatile("" : "+m"(value));
#endif
}

}  // namespace

uint64_t ReadPortable(const void* data, size_t bytes) {
  const size_t per_stream = bytes / kStreams;
  const char* start = static_cast<const char*>(data);
  Words sum[8] = {};
  for (size_t at = 0; at < per_stream; at += 128)
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const Words* line = reinterpret_cast<const Words*>(start + stream * per_stream + at);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) sum[i] ^= line[i];
    }
  for (int i = 1; i < 8; ++i) sum[0] ^= sum[i];
  return sum[0][0] ^ sum[0][1];
}

void CopyPortable(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

int64_t PeakF32Portable(int64_t iterations) {
  constexpr int kChains = 12;  // of the 16 registers that the smallest instruction set has
  Floats zero = {0, 0, 0, 0};
  Floats sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) {
    sum[i] = zero + 1.0f;
    Hide(sum[i]);  // equal chains would become one
  }
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] += sum[i] * zero;
    Hide(zero);
  }
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) Hide(sum[i]);
  return iterations * kChains * 4 * 2;
}

int64_t DependentCycles(int64_t iterations) {
  uint64_t x = 3;
  for (int64_t n = 0; n < iterations; ++n) {
#if defined(__aarch64__)
    // 16 additions, each waiting for the one before: one cycle each on every core since Cortex-A53.
    __asm__ volatile(
        "add %0, %0, %0\n add %0, %0, %0\n add %0, %0, %0\n add %0, %0, %0\n"
        "add %0, %0, %0\n add %0, %0, %0\n add %0, %0, %0\n add %0, %0, %0\n"
        "add %0, %0, %0\n add %0, %0, %0\n add %0, %0, %0\n add %0, %0, %0\n"
        "add %0, %0, %0\n add %0, %0, %0\n add %0, %0, %0\n add %0, %0, %0\n"
        : "+r"(x));
#elif defined(__x86_64__)
    // 8 multiplications of three cycles. Not additions: recent cores fold chains of those while renaming.
    __asm__ volatile(
        "imul %0, %0\n imul %0, %0\n imul %0, %0\n imul %0, %0\n"
        "imul %0, %0\n imul %0, %0\n imul %0, %0\n imul %0, %0\n"
        : "+r"(x));
#endif
  }
#if defined(__aarch64__)
  return iterations * 16;
#elif defined(__x86_64__)
  return iterations * 24;
#else
  return 0 * static_cast<int64_t>(x);
#endif
}

}  // namespace celer::probe
