#include <immintrin.h>

#include "limits/probe/probe_kernels.h"
#include "limits/probe/probe_peak.h"

namespace celer::probe {

// 32 multiply-adds per instruction.
int64_t PeakF16Avx512(int64_t iterations) {
  return RunChains<24>(iterations, 32, _mm512_setzero_ph(), _mm512_set1_ph(static_cast<_Float16>(0.5f)),
                       _mm512_set1_ph(static_cast<_Float16>(-0.75f)),
                       [](auto sum, auto a, auto b) { return _mm512_fmadd_ph(a, b, sum); });
}

}  // namespace celer::probe
