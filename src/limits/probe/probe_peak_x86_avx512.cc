#include <immintrin.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// 16 multiply-adds per instruction; 24 chains of the 32 registers.
int64_t PeakF32Avx512(int64_t iterations) {
  return RunChains<24>(iterations, 16, _mm512_setzero_ps(), _mm512_set1_ps(0.5f), _mm512_set1_ps(-0.75f),
                       [](auto sum, auto a, auto b) { return _mm512_fmadd_ps(a, b, sum); });
}

}  // namespace celer::probe
