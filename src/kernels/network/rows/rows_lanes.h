// See simd.h for why all of it is in an unnamed namespace.
#pragma once

#include <math.h>

#include "kernels/network/rows/rows_kernels.h"
#include "kernels/shared/simd.h"

namespace celer {
namespace {

// The reduction of f(vector), lane by lane in four accumulators; lanes behind the end are left out.
template <class F>
CELER_INLINE float SumOver(const float* x, int64_t n, F f) {
  using S = Simd;
  constexpr int kL = S::kLanes;
  S::F s[4] = {S::Set(0.0f), S::Set(0.0f), S::Set(0.0f), S::Set(0.0f)};
  int64_t i = 0;
  for (; i + 4 * kL <= n; i += 4 * kL)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) s[j] = S::Add(s[j], f(S::Load(x + i + j * kL)));
  for (; i + kL <= n; i += kL) s[0] = S::Add(s[0], f(S::Load(x + i)));
  float rest = 0;
  if (i < n) {
    float lanes[kL];
    S::Store(lanes, f(LoadSome(x + i, n - i)));
    for (int64_t l = 0; l < n - i; ++l) rest += lanes[l];
  }
  return S::Sum(S::Add(S::Add(s[0], s[1]), S::Add(s[2], s[3]))) + rest;
}

inline float SumLanes(const float* x, int64_t n) {
  return SumOver(x, n, [](Simd::F v) { return v; });
}

inline void LayerNormLanes(const float* x, const float* scale, const float* shift, float eps, float* out,
                           int64_t n) {
  using S = Simd;
  constexpr int kL = S::kLanes;
  if (n == 0) return;
  const float mean = SumLanes(x, n) / static_cast<float>(n);
  const S::F m = S::Set(mean);
  const float squares = SumOver(x, n, [=](S::F v) { return S::Mul(S::Sub(v, m), S::Sub(v, m)); });
  const S::F factor = S::Set(1.0f / sqrtf(squares / static_cast<float>(n) + eps));
  for (int64_t i = 0; i < n; i += kL) {
    const bool whole = i + kL <= n;
    const auto load = [&](const float* p) { return whole ? S::Load(p + i) : LoadSome(p + i, n - i); };
    S::F v = S::Mul(S::Sub(load(x), m), factor);
    if (scale) v = S::Mul(v, load(scale));
    if (shift) v = S::Add(v, load(shift));
    if (whole)
      S::Store(out + i, v);
    else
      StoreSome(out + i, v, n - i);
  }
}

// NaN propagates to the whole row, as in exact arithmetic.
inline void SoftmaxLanes(const float* x, float* out, int64_t n) {
  using S = Simd;
  constexpr int kL = S::kLanes;
  if (n == 0) return;
  float most = x[0];
  int64_t i = 0;
  if (n >= kL) {
    S::F m = S::Load(x);
    for (i = kL; i + kL <= n; i += kL) m = S::Max(m, S::Load(x + i));
    most = S::MaxOf(m);
  }
  for (; i < n; ++i) most = x[i] > most ? x[i] : most;
  const S::F top = S::Set(most);
  S::F s[4] = {S::Set(0.0f), S::Set(0.0f), S::Set(0.0f), S::Set(0.0f)};
  for (i = 0; i + 4 * kL <= n; i += 4 * kL) {
    S::F v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) v[j] = S::Sub(S::Load(x + i + j * kL), top);
    ExpNonPositive(v);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      S::Store(out + i + j * kL, v[j]);
      s[j] = S::Add(s[j], v[j]);
    }
  }
  float sum = S::Sum(S::Add(S::Add(s[0], s[1]), S::Add(s[2], s[3])));
  for (; i < n; i += kL) {
    const int64_t some = n - i < kL ? n - i : kL;
    S::F v[1] = {S::Sub(LoadSome(x + i, some), top)};
    ExpNonPositive(v);
    float lanes[kL];
    S::Store(lanes, v[0]);
    for (int64_t l = 0; l < some; ++l) {
      out[i + l] = lanes[l];
      sum += lanes[l];
    }
  }
  const float factor = 1.0f / sum;
  for (i = 0; i + kL <= n; i += kL) S::Store(out + i, S::Mul(S::Load(out + i), S::Set(factor)));
  for (; i < n; ++i) out[i] *= factor;
}

}  // namespace
}  // namespace celer
