// See simd.h for why all of it is in an unnamed namespace.
#pragma once

#include <math.h>

#include "kernels/network/conv/pad_plane.h"
#include "kernels/network/pool/pool_kernels.h"
#include "kernels/shared/lanes.h"

namespace celer {
namespace {

// Separable: first along each row, in place, then down the columns, kernel_h + kernel_w steps per output
// instead of their product.
template <class Combine>
CELER_INLINE void PoolAs(const BasicPoolPlane<Real>& p, float border, Combine combine) {
  using S = Lanes;
  constexpr int kL = S::kLanes;
  const PaddedLayout l =
      LayoutOf(p.out_h, p.out_w, p.kernel_h, p.kernel_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w);
  PadPlane({.in = p.in,
            .in_h = p.in_h,
            .in_w = p.in_w,
            .stride_w = p.stride_w,
            .pad_top = p.pad_top,
            .pad_left = p.pad_left,
            .border = border},
           l, p.scratch);
  for (int64_t y = 0; y < l.rows; ++y) {
    Real* const row = p.scratch + y * l.row;
    for (int64_t x = 0; x < p.out_w; x += kL) {
      S::F v = S::Load(row + x);
      for (int64_t k = 1; k < p.kernel_w; ++k) {
        const int64_t col = k * p.dilation_w;
        v = combine(v, S::Load(row + col % p.stride_w * l.phase + col / p.stride_w + x));
      }
      S::Store(row + x, v);
    }
  }
  for (int64_t y = 0; y < p.out_h; ++y) {
    const Real* const row = p.scratch + y * p.stride_h * l.row;
    for (int64_t x = 0; x < p.out_w; x += kL) {
      S::F v = S::Load(row + x);
      for (int64_t k = 1; k < p.kernel_h; ++k) v = combine(v, S::Load(row + k * p.dilation_h * l.row + x));
      const bool whole = x + kL <= p.out_w;
      if (p.kind == PoolKind::kAverage) {
        float shares[kL] = {};
        memcpy(shares, p.col_share + x, static_cast<size_t>(Least(kL, p.out_w - x)) * sizeof(float));
        v = S::Mul(v, S::Mul(FromFloats(shares), S::Set(p.row_share[y])));
      }
      if (whole)
        S::Store(p.out + y * p.out_w + x, v);
      else
        StoreSome(p.out + y * p.out_w + x, v, p.out_w - x);
    }
  }
}

inline void PoolLanes(const BasicPoolPlane<Real>& p) {
  using S = Lanes;
  if (p.kind == PoolKind::kMax)
    PoolAs(p, -INFINITY, [](S::F a, S::F b) { return S::Max(a, b); });
  else
    PoolAs(p, 0.0f, [](S::F a, S::F b) { return S::Add(a, b); });
}

}  // namespace
}  // namespace celer
