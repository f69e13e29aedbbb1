#include <immintrin.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// vpdpbusd on 256 bits: 8 dot products of four, 32 multiply-adds.
int64_t PeakInt8AvxVnni(int64_t iterations) {
  return RunChains<12>(iterations, 32, _mm256_setzero_si256(), _mm256_set1_epi8(77), _mm256_set1_epi8(-45),
                       [](auto sum, auto a, auto b) { return _mm256_dpbusd_avx_epi32(sum, a, b); });
}

}  // namespace celer::probe
