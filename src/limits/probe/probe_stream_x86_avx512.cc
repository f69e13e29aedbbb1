#include <immintrin.h>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {

uint64_t ReadAvx512(const void* data, size_t bytes) {
  constexpr int kVectors = 256 / sizeof(__m512i);  // 256 bytes of each stream in turn
  const size_t per_stream = bytes / kStreams;
  const char* start = static_cast<const char*>(data);
  __m512i sum[kVectors];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  for (size_t at = 0; at < per_stream; at += 256)
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const char* line = start + stream * per_stream + at;
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i)
        sum[i] = _mm512_xor_si512(sum[i], _mm512_load_si512(reinterpret_cast<const __m512i*>(line + 64 * i)));
    }
  for (int i = 1; i < kVectors; ++i) sum[0] = _mm512_xor_si512(sum[0], sum[i]);
  alignas(64) uint64_t words[64 / 8];
  _mm512_store_si512(reinterpret_cast<__m512i*>(words), sum[0]);
  uint64_t all = 0;
  for (const uint64_t word : words) all ^= word;
  return all;
}

// Streaming stores: an ordinary store would first read the line it overwrites, a third stream of traffic.
void CopyAvx512(void* to, const void* from, size_t bytes) {
  const char* in = static_cast<const char*>(from);
  char* out = static_cast<char*>(to);
  for (size_t at = 0; at < bytes; at += 256) {
#pragma GCC unroll 8
    for (size_t i = 0; i < 256; i += 64)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at + i),
                          _mm512_load_si512(reinterpret_cast<const __m512i*>(in + at + i)));
  }
  _mm_sfence();
}

}  // namespace celer::probe
