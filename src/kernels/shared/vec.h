// Four floats at a time in the compiler's own vector type: the same source on every CPU. The order of
// additions depends on n alone, so a row's result does not change with the rest of the batch.
#pragma once

#include <cstdint>
#include <cstring>

namespace celer::vec {

using F32x4 = float __attribute__((vector_size(16)));

inline F32x4 Load(const float* p) {
  F32x4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void Store(float* p, F32x4 v) {
  std::memcpy(p, &v, sizeof v);
}
inline float Sum(F32x4 v) {
  return (v[0] + v[2]) + (v[1] + v[3]);
}

inline float Dot(const float* a, const float* b, int64_t n) {
  F32x4 s0{}, s1{};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    s0 += Load(a + i) * Load(b + i);
    s1 += Load(a + i + 4) * Load(b + i + 4);
  }
  float sum = Sum(s0 + s1);
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// y += a * x
inline void Axpy(float a, const float* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) Store(y + i, Load(y + i) + a * Load(x + i));
  for (; i < n; ++i) y[i] += a * x[i];
}

inline void Scale(float a, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] *= a;
}

}  // namespace celer::vec
