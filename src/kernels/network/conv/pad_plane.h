// Copies a plane into its padded form; see simd.h for why all of it is in an unnamed namespace.
#pragma once

#include "kernels/network/conv/padded_layout.h"
#include "kernels/shared/gemm/strided_load.h"
#include "kernels/shared/lanes.h"

namespace celer {
namespace {

CELER_INLINE int64_t Least(int64_t a, int64_t b) {
  return a < b ? a : b;
}
CELER_INLINE int64_t Most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

struct PlaneToPad {
  const Real* in;  // [in_h, in_w]
  int64_t in_h, in_w, stride_w, pad_top, pad_left;
  float border = 0;
};

// Columns from `begin` to `end`, a vector at a time: may write up to a vector less one number more.
CELER_INLINE void FillColumns(Real* to, int64_t begin, int64_t end, float value) {
  for (int64_t i = begin; i < end; i += Lanes::kLanes) Lanes::Store(to + i, Lanes::Set(value));
}

// to[i] = x[i * stride]. With stride 2 vectors read one number behind the last, if they `may`.
CELER_INLINE void CopyColumns(const Real* x, int64_t stride, bool may, Real* to, int64_t n) {
  using S = Lanes;
  constexpr int kL = S::kLanes;
  int64_t i = 0;
  if (stride == 1 && n >= kL) {
    for (; i + kL <= n; i += kL) S::Store(to + i, S::Load(x + i));
    S::Store(to + n - kL, S::Load(x + n - kL));  // the rest, over what is there already
    return;
  }
  if (stride == 2 && n >= kL) {
    for (; i + kL < n; i += kL) S::Store(to + i, LoadEverySecond(x + 2 * i));
    if (may) {
      S::Store(to + n - kL, LoadEverySecond(x + 2 * (n - kL)));
      return;
    }
  }
  if (stride == 1) {
    StoreSome(to, LoadSome(x, n), n);
    return;
  }
#if defined(__AVX2__)  // vectors with masks are quick here
  if (stride == 2)
    for (; i < n; i += kL) {
      const int64_t some = Least(n - i, kL), reads = 2 * some - 1;
      const S::F low = LoadSome(x + 2 * i, Least(reads, kL));
      const S::F high = LoadSome(x + 2 * i + kL, Most(reads - kL, 0));
      StoreSome(to + i, EverySecondOf(low, high), some);
    }
#endif
  for (; i < n; ++i) to[i] = x[i * stride];
}

inline void PadPlane(const PlaneToPad& p, const PaddedLayout& l, Real* out) {
  // What lies behind only reaches results that are discarded.
  const int64_t used = l.phase - kMostLanes, s = p.stride_w;
  const int64_t top = Least(p.pad_top, l.rows), bottom = Most(top, Least(p.pad_top + p.in_h, l.rows));
  FillColumns(out, 0, top * l.row, p.border);
  for (int64_t phase = 0; phase < s; ++phase) {
    // Column i of this phase is x = i * stride + phase - pad_left of the input.
    const int64_t begin = Least(Most((p.pad_left - phase + s - 1) / s, 0), used);
    const int64_t end = Most(begin, Least((p.in_w - 1 + p.pad_left - phase + s) / s, used));
    const Real* x = p.in + (top - p.pad_top) * p.in_w + begin * s + phase - p.pad_left;
    Real* cols = out + top * l.row + phase * l.phase;
    for (int64_t y = top; y < bottom; ++y, x += p.in_w, cols += l.row) {
      FillColumns(cols, 0, begin, p.border);
      CopyColumns(x, s, y + 1 - p.pad_top < p.in_h, cols + begin, end - begin);
      FillColumns(cols, end, used, p.border);
    }
  }
  FillColumns(out, bottom * l.row, l.rows * l.row, p.border);
}

}  // namespace
}  // namespace celer
