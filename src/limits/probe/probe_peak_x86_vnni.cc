#include <immintrin.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// vpdpbusd: 16 dot products of four, 64 multiply-adds.
int64_t PeakInt8Vnni(int64_t iterations) {
  return RunChains<24>(iterations, 64, _mm512_setzero_si512(), _mm512_set1_epi8(77), _mm512_set1_epi8(-45),
                       [](auto sum, auto a, auto b) { return _mm512_dpbusd_epi32(sum, a, b); });
}

}  // namespace celer::probe
