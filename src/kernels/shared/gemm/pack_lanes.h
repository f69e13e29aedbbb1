// Packing into panels for vectors of any width; see simd.h for why all of it is in an unnamed namespace.
#pragma once

#include "kernels/shared/gemm/gemm_kernels.h"
#include "kernels/shared/gemm/strided_load.h"
#include "kernels/shared/lanes.h"

namespace celer {
namespace {

constexpr int kTileVectors = 3;
constexpr int kNr = kTileVectors * Lanes::kLanes;

CELER_INLINE int64_t MinOf(int64_t a, int64_t b) {
  return a < b ? a : b;
}

template <int kWidth>
void PackPanels(const BasicPackSource<Real>& from, int64_t lanes, int64_t k, Real* out, int64_t panel) {
  using S = Lanes;
  const int64_t full = lanes / kWidth, rest = lanes % kWidth;
  if (from.lane_stride == 1 && kWidth % S::kLanes == 0) {
    // Along the lanes, which lie side by side: the reads of one step are one stream.
    for (int64_t i = 0; i < k; ++i) {
      const Real* in = from.data + i * from.k_stride;
      Real* to = out + i * kWidth;
      // The prefetcher of the CPU starts anew in each of these short streams.
      const int64_t ahead = i + 4 < k ? 4 * from.k_stride : 0;
      for (int64_t p = 0; p < full; ++p, in += kWidth, to += panel) {
        __builtin_prefetch(in + ahead);
#pragma GCC unroll 8
        for (int v = 0; v < kWidth / S::kLanes; ++v)
          S::Store(to + v * S::kLanes, S::Load(in + v * S::kLanes));
      }
      if (rest)
#pragma GCC unroll 8
        for (int v = 0; v < kWidth / S::kLanes; ++v) {
          const int64_t some = rest - v * S::kLanes;
          S::F x = S::Set(0.0f);
          if (some >= S::kLanes)
            x = S::Load(in + v * S::kLanes);
          else if (some > 0)
            x = LoadSome(in + v * S::kLanes, some);
          S::Store(to + v * S::kLanes, x);
        }
    }
    return;
  }
  for (int64_t p = 0; p * kWidth < lanes; ++p) {
    const Real* in = from.data + p * kWidth * from.lane_stride;
    Real* to = out + p * panel;
    const int64_t here = MinOf(kWidth, lanes - p * kWidth);
    int64_t i = 0;
    if (here == kWidth && from.k_stride == 1) {
      for (; i + 4 <= k; i += 4)
#pragma GCC unroll 12
        for (int l = 0; l + 4 <= kWidth; l += 4)
          Transpose4x4(in + l * from.lane_stride + i, from.lane_stride, to + i * kWidth + l, kWidth);
    }
    for (; i < k; ++i)
      for (int l = 0; l < kWidth; ++l)
        to[i * kWidth + l] = l < here ? in[l * from.lane_stride + i * from.k_stride] : Real{};
  }
}

// Output pixels of one panel that lie in one row of the output.
struct Im2colRun {
  int64_t y, x;         // of the input under tap (0, 0) for the first of them; may be outside
  int64_t count, lane;  // how many; where in the panel
};

template <int kStride>
CELER_INLINE Lanes::F LoadStrided(const Real* p) {
  if constexpr (kStride == 1) return Lanes::Load(p);
  return LoadEverySecond(p);
}

// Vectors from neighbours or from every second number; `to` may be written up to a vector further.
template <int kStride>
CELER_INLINE void CopyRun(const Real* from, int64_t count, Real* to) {
  for (int64_t l = 0; l < count; l += Lanes::kLanes)
    Lanes::Store(to + l, LoadStrided<kStride>(from + l * kStride));
}

// The input of one image, and where it may be read.
struct Im2colInput {
  const Real* begin;
  const Real* end;
};

// One run under one tap: row[x + i * stride] for i < count, 0 where that is outside [0, w). May write up to a
// vector further.
CELER_INLINE void GatherRun(const Im2colInput& in, const Real* row, int64_t x, int64_t stride, int64_t count,
                            int64_t w, Real* to) {
  constexpr int kL = Lanes::kLanes;
  if (stride > 2 || row + x < in.begin || row + x + (count + kL - 1) / kL * kL * stride > in.end) {
    for (int64_t i = 0; i < count; ++i, x += stride) to[i] = x >= 0 && x < w ? row[x] : Real{};
    return;
  }
  if (stride == 1)
    CopyRun<1>(row + x, count, to);
  else
    CopyRun<2>(row + x, count, to);
  // What came from the rows above and below is outside.
  for (int64_t i = 0; i < count && x + i * stride < 0; ++i) to[i] = Real{};
  for (int64_t i = count; i > 0 && x + (i - 1) * stride >= w; --i) to[i - 1] = Real{};
}

// The taps of one row of the kernel for a panel that is one run, all inside the input.
template <int kStride>
CELER_INLINE void CopyTaps(const Real* from, int64_t step, int64_t taps, Real* to) {
  for (int64_t i = 0; i < taps; ++i, from += step, to += kNr) CopyRun<kStride>(from, kNr, to);
}

// One tap for a panel of several runs, or one that reaches over the border. May write up to a vector behind
// the panel's row.
CELER_INLINE void GatherTap(const Im2col& g, const Im2colInput& in, int64_t channel, int64_t ky, int64_t kx,
                            const Im2colRun* runs, int count, int64_t used, Real* to) {
  for (int r = 0; r < count; ++r) {
    const Im2colRun& run = runs[r];
    const int64_t y = run.y + ky * g.dilation_h, x = run.x + kx * g.dilation_w;
    if (y < 0 || y >= g.in_h)
      for (int64_t l = 0; l < run.count; l += Lanes::kLanes)
        Lanes::Store(to + run.lane + l, Lanes::Set(0.0f));
    else
      GatherRun(in, in.begin + (channel * g.in_h + y) * g.in_w, x, g.stride_w, run.count, g.in_w,
                to + run.lane);
  }
  for (int64_t l = used; l < kNr; ++l) to[l] = Real{};
}

// A panel is written row after row, so a vector may spill over the end of a run or of a row: what follows is
// written later. The last row goes through a buffer: what is behind it may be another thread's.
inline void PackIm2col(const Im2col& g, const Real* in, const Real* in_end, int64_t k_begin, int64_t k_end,
                       int64_t n_begin, int64_t n_end, Real* out, int64_t panel) {
  const Im2colInput input{in, in_end};
  const int64_t plane = g.in_h * g.in_w, s = g.stride_w;
  for (int64_t n = n_begin; n < n_end; n += kNr, out += panel) {
    Im2colRun runs[kNr];
    int count = 0;
    const int64_t last = MinOf(n + kNr, n_end);
    for (int64_t at = n; at < last;) {
      const int64_t oy = at / g.out_w, ox = at % g.out_w, here = MinOf(g.out_w - ox, last - at);
      runs[count++] = {oy * g.stride_h - g.pad_top, ox * s - g.pad_left, here, at - n};
      at += here;
    }
    const bool one_run = count == 1 && runs[0].count == kNr && (s == 1 || s == 2) && runs[0].x >= 0 &&
                         runs[0].x + (kNr - 1) * s + (g.kernel_w - 1) * g.dilation_w < g.in_w;
    int64_t c = k_begin / g.kernel_w / g.kernel_h, ky = k_begin / g.kernel_w % g.kernel_h;
    int64_t kx = k_begin % g.kernel_w;
    Real* to = out;
    // One row of the kernel at a time, or what is left of it.
    for (int64_t k = k_begin; k < k_end;) {
      const int64_t taps = MinOf(g.kernel_w - kx, k_end - k);
      const int64_t y0 = runs[0].y + ky * g.dilation_h;
      const Real* const first = in + c * plane + y0 * g.in_w + runs[0].x + kx * g.dilation_w;
      if (one_run && y0 >= 0 && y0 < g.in_h && first + (taps - 1) * g.dilation_w + kNr * s <= in_end) {
        if (s == 1)
          CopyTaps<1>(first, g.dilation_w, taps, to);
        else
          CopyTaps<2>(first, g.dilation_w, taps, to);
        to += taps * kNr;
      } else {
        for (int64_t i = 0; i < taps; ++i, to += kNr) {
          if (k + i + 1 < k_end) {
            GatherTap(g, input, c, ky, kx + i, runs, count, last - n, to);
            continue;
          }
          Real row[kNr + Lanes::kLanes];
          GatherTap(g, input, c, ky, kx + i, runs, count, last - n, row);
          for (int l = 0; l < kNr; ++l) to[l] = row[l];
        }
      }
      k += taps;
      kx = 0;
      if (++ky == g.kernel_h) ky = 0, ++c;
    }
  }
}

}  // namespace
}  // namespace celer
