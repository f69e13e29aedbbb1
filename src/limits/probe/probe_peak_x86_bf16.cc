#include <immintrin.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// vdpbf16ps: 16 dot products of two, 32 multiply-adds.
int64_t PeakBf16Avx512(int64_t iterations) {
  return RunChains<24>(iterations, 32, _mm512_setzero_ps(), _mm512_set1_epi16(0x3f01),
                       _mm512_set1_epi16(0x3f47), [](auto sum, auto a, auto b) {
                         return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a),
                                                 reinterpret_cast<__m512bh>(b));
                       });
}

}  // namespace celer::probe
