#include <immintrin.h>

#include "limits/probe/probe_kernels.h"

namespace celer::probe {

uint64_t ReadAvx2(const void* data, size_t bytes) {
  constexpr int kVectors = 256 / sizeof(__m256i);  // 256 bytes of each stream in turn
  const size_t per_stream = bytes / kStreams;
  const char* start = static_cast<const char*>(data);
  __m256i sum[kVectors];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (size_t at = 0; at < per_stream; at += 256)
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const char* line = start + stream * per_stream + at;
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i)
        sum[i] = _mm256_xor_si256(sum[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(line + 32 * i)));
    }
  for (int i = 1; i < kVectors; ++i) sum[0] = _mm256_xor_si256(sum[0], sum[i]);
  alignas(32) uint64_t words[32 / 8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), sum[0]);
  uint64_t all = 0;
  for (const uint64_t word : words) all ^= word;
  return all;
}

// Streaming stores: an ordinary store would first read the line it overwrites, a third stream of traffic.
void CopyAvx2(void* to, const void* from, size_t bytes) {
  const char* in = static_cast<const char*>(from);
  char* out = static_cast<char*>(to);
  for (size_t at = 0; at < bytes; at += 256) {
#pragma GCC unroll 8
    for (size_t i = 0; i < 256; i += 32)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(out + at + i),
                          _mm256_load_si256(reinterpret_cast<const __m256i*>(in + at + i)));
  }
  _mm_sfence();
}

}  // namespace celer::probe
