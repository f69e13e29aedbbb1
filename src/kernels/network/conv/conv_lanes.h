// Depthwise planes and Winograd transforms for vectors of any width; see simd.h for why all of it is in an
// unnamed namespace.
#pragma once

#include <math.h>

#include "kernels/network/conv/conv_kernels.h"
#include "kernels/network/conv/pad_plane.h"
#include "kernels/shared/gemm/epilogue_lanes.h"
#include "kernels/shared/lanes.h"

namespace celer {
namespace {

// ---- depthwise --------------------------------------------------------------------------------------------

// One band of rows of the output. Its own small struct, by value: the loop has registers for nothing else.
struct DepthwiseBand {
  const Real* top;     // the padded input under the first tap
  int64_t row, phase;  // as in PaddedLayout
  const Real* weights;
  float bias;
  Lanes::F low, high;
  Real* out;
  int64_t out_w;
  const Real* end;  // of the plane
};

template <int kKernel, int kStride, int kRows, int kVectors>
CELER_INLINE void DepthwiseStep(const Real* top, int64_t row, int64_t phase,
                                const Lanes::F (&w)[kKernel][kKernel], Lanes::F bias,
                                Lanes::F (&sum)[kRows][kVectors]) {
  using S = Lanes;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = bias;
#pragma GCC unroll 12
  for (int y = 0; y < (kRows - 1) * kStride + kKernel; ++y, top += row) {
#pragma GCC unroll 5
    for (int x = 0; x < kKernel; ++x) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const S::F in = S::Load(top + x % kStride * phase + x / kStride + v * S::kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const int tap = y - r * kStride;
          if (tap >= 0 && tap < kKernel) sum[r][v] = S::Fma(in, w[tap][x], sum[r][v]);
        }
      }
    }
  }
}

template <int kKernel, int kStride, int kRows>
__attribute__((noinline)) void DepthwiseRows(const DepthwiseBand& b) {
  using S = Lanes;
  constexpr int kL = S::kLanes;
  S::F w[kKernel][kKernel];
#pragma GCC unroll 5
  for (int y = 0; y < kKernel; ++y)
#pragma GCC unroll 5
    for (int x = 0; x < kKernel; ++x) w[y][x] = S::Set(b.weights[y * kKernel + x]);
  const S::F bias = S::Set(b.bias), low = b.low, high = b.high;
  const int64_t row = b.row, phase = b.phase, out_w = b.out_w;
  const Real* const top = b.top;
  Real* const out = b.out;
  int64_t ox = 0;
  if constexpr (kKernel == 3) {
    for (; ox + 2 * kL <= out_w; ox += 2 * kL) {
      S::F sum[kRows][2];
      DepthwiseStep<kKernel, kStride, kRows, 2>(top + ox, row, phase, w, bias, sum);
      Real* to = out + ox;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r, to += out_w) {
        S::Store(to, ClampTo(sum[r][0], low, high));
        S::Store(to + kL, ClampTo(sum[r][1], low, high));
      }
    }
  }
  for (; ox < out_w; ox += kL) {
    // The last vector of a row overlaps the one before: no partial stores, unless the row is shorter than
    // one.
    const int64_t at = out_w < kL ? 0 : Least(ox, out_w - kL);
    S::F sum[kRows][1];
    DepthwiseStep<kKernel, kStride, kRows, 1>(top + at, row, phase, w, bias, sum);
    Real* to = out + at;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r, to += out_w) {
      // What a vector store spills behind a short row is overwritten by the next row, which comes later.
      const S::F v = ClampTo(sum[r][0], low, high);
      if (to + kL <= b.end)
        S::Store(to, v);
      else
        StoreSome(to, v, out_w);
    }
  }
}

template <int kKernel, int kStride>
CELER_INLINE void DepthwiseSquare(const BasicDepthwisePlane<Real>& p, const PaddedLayout& l, Real* out,
                                  Lanes::F low, Lanes::F high) {
  DepthwiseBand band{p.scratch, l.row, l.phase, p.weights, p.bias,
                     low,       high,  out,     p.out_w,   out + p.out_h * p.out_w};
  int64_t left = p.out_h;
  const auto next = [&](int64_t rows) {
    band.top += rows * kStride * l.row;
    band.out += rows * p.out_w;
    left -= rows;
  };
  for (; left >= 4; next(4)) DepthwiseRows<kKernel, kStride, 4>(band);
  if (left >= 2) {
    DepthwiseRows<kKernel, kStride, 2>(band);
    next(2);
  }
  if (left >= 1) DepthwiseRows<kKernel, kStride, 1>(band);
}

CELER_INLINE void DepthwiseAny(const BasicDepthwisePlane<Real>& p, const PaddedLayout& l, Real* out,
                               Lanes::F low, Lanes::F high) {
  using S = Lanes;
  for (int64_t oy = 0; oy < p.out_h; ++oy)
    for (int64_t ox = 0; ox < p.out_w; ox += S::kLanes) {
      S::F sum = S::Set(p.bias);
      for (int64_t y = 0; y < p.kernel_h; ++y) {
        const Real* const row = p.scratch + (oy * p.stride_h + y * p.dilation_h) * l.row + ox;
        for (int64_t x = 0; x < p.kernel_w; ++x) {
          const int64_t col = x * p.dilation_w;
          sum = S::Fma(S::Load(row + col % p.stride_w * l.phase + col / p.stride_w),
                       S::Set(p.weights[y * p.kernel_w + x]), sum);
        }
      }
      const S::F v = ClampTo(sum, low, high);
      const int64_t n = p.out_w - ox;
      if (n >= S::kLanes)
        S::Store(out + oy * p.out_w + ox, v);
      else
        StoreSome(out + oy * p.out_w + ox, v, n);
    }
}

inline void RunDepthwise(const BasicDepthwisePlane<Real>& p) {
  using S = Lanes;
  const PaddedLayout l =
      LayoutOf(p.out_h, p.out_w, p.kernel_h, p.kernel_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w);
  PadPlane({.in = p.in,
            .in_h = p.in_h,
            .in_w = p.in_w,
            .stride_w = p.stride_w,
            .pad_top = p.pad_top,
            .pad_left = p.pad_left},
           l, p.scratch);
  // A clip ends it in registers, unless something is added first. `add` may be `out`, so the sums then go to
  // the scratch.
  const bool clip = p.f.kind == Pointwise::Kind::kClip && !p.add;
  const bool finish = p.add || p.f.kind > Pointwise::Kind::kClip;
  const S::F low = S::Set(clip ? p.f.a : -INFINITY), high = S::Set(clip ? p.f.b : INFINITY);
  Real* const out = p.add ? p.scratch + l.floats : p.out;
  const int64_t k = p.kernel_h, s = p.stride_h;
  const bool square = p.kernel_w == k && p.stride_w == s && p.dilation_h == 1 && p.dilation_w == 1;
  if (square && k == 3 && s == 1)
    DepthwiseSquare<3, 1>(p, l, out, low, high);
  else if (square && k == 3 && s == 2)
    DepthwiseSquare<3, 2>(p, l, out, low, high);
  else if (square && k == 5 && s == 1)
    DepthwiseSquare<5, 1>(p, l, out, low, high);
  else if (square && k == 5 && s == 2)
    DepthwiseSquare<5, 2>(p, l, out, low, high);
  else
    DepthwiseAny(p, l, out, low, high);
  if (finish) FinishRow(p.f, out, p.add, p.add_last, p.out, p.out_h * p.out_w);
}

// ---- Winograd ---------------------------------------------------------------------------------------------
// The points are 0, +-1/sqrt 2, +-sqrt 2 and infinity: sums lose less to cancellation than with +-1 and +-2.

constexpr float kRoot2 = 1.41421356f, kHalfRoot2 = 0.70710678f;

// One column or row of the input transform, in place.
CELER_INLINE void TransformIn(Lanes::F& a0, Lanes::F& a1, Lanes::F& a2, Lanes::F& a3, Lanes::F& a4,
                              Lanes::F& a5) {
  using S = Lanes;
  const S::F root = S::Set(kRoot2), half_root = S::Set(kHalfRoot2), c = S::Set(2.5f);
  const S::F b0 = S::Add(S::Fnma(c, a2, a0), a4);
  const S::F b5 = S::Add(S::Fnma(c, a3, a1), a5);
  const S::F even1 = S::Fnma(S::Set(2.0f), a2, a4), even2 = S::Fnma(S::Set(0.5f), a2, a4);
  const S::F odd1 = S::Fnma(root, a1, S::Mul(half_root, a3));
  const S::F odd2 = S::Fnma(half_root, a1, S::Mul(root, a3));
  a0 = b0;
  a1 = S::Add(even1, odd1);
  a2 = S::Sub(even1, odd1);
  a3 = S::Add(even2, odd2);
  a4 = S::Sub(even2, odd2);
  a5 = b5;
}

CELER_INLINE void TransformOut(Lanes::F m0, Lanes::F m1, Lanes::F m2, Lanes::F m3, Lanes::F m4, Lanes::F m5,
                               Lanes::F& o0, Lanes::F& o1, Lanes::F& o2, Lanes::F& o3) {
  using S = Lanes;
  const S::F sum1 = S::Add(m1, m2), difference1 = S::Sub(m1, m2);
  const S::F sum2 = S::Add(m3, m4), difference2 = S::Sub(m3, m4);
  o0 = S::Add(S::Add(m0, sum1), sum2);
  o1 = S::Fma(S::Set(kHalfRoot2), difference1, S::Mul(S::Set(kRoot2), difference2));
  o2 = S::Fma(S::Set(0.5f), sum1, S::Mul(S::Set(2.0f), sum2));
  o3 = S::Add(m5, S::Fma(S::Set(0.5f * kHalfRoot2), difference1, S::Mul(S::Set(2 * kRoot2), difference2)));
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// p[i], p[4 + i], ..., p[28 + i] for i < 4, as four vectors.
template <int kN>
CELER_INLINE void LoadFourths(const float* p, __m256 (&v)[kN]) {
  const auto rows = [&](int i) {  // numbers 4 i and 16 + 4 i and what follows
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 4 * i)), _mm_loadu_ps(p + 16 + 4 * i),
                                1);
  };
  const __m256 r0 = rows(0), r1 = rows(1), r2 = rows(2), r3 = rows(3);
  const __m256d a0 = _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1)),
                a2 = _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1)),
                b0 = _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3)),
                b2 = _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3));
  v[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a0, b0));
  v[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a0, b0));
  v[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(a2, b2));
  v[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(a2, b2));
}
#endif

// Numbers p[0..5], p[4..9], p[8..13], ... to six vectors: reads 4 * kLanes + 4 of them.
CELER_INLINE void LoadTiles(const Real* p, Lanes::F (&v)[6]) {
#if defined(CELER_LANES_F16)
  const uint16x8x4_t a = vld4q_u16(&p->bits), b = vld4q_u16(&p[4].bits);
  for (int i = 0; i < 4; ++i) v[i] = vreinterpretq_f16_u16(a.val[i]);
  for (int i = 0; i < 2; ++i) v[4 + i] = vreinterpretq_f16_u16(b.val[i]);
#elif defined(__aarch64__)
  const float32x4x4_t a = vld4q_f32(p), b = vld4q_f32(p + 4);
  v[0] = a.val[0], v[1] = a.val[1], v[2] = a.val[2], v[3] = a.val[3];
  v[4] = b.val[0], v[5] = b.val[1];
#elif defined(__AVX512F__)
  // By permutations of two registers: a gather takes its 16 numbers one by one.
  const __m512i i01 = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i i23 = _mm512_add_epi32(i01, _mm512_set1_epi32(2));
  const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16), c = _mm512_loadu_ps(p + 32),
               d = _mm512_loadu_ps(p + 48);
  const __m512 ab01 = _mm512_permutex2var_ps(a, i01, b), ab23 = _mm512_permutex2var_ps(a, i23, b);
  const __m512 cd01 = _mm512_permutex2var_ps(c, i01, d), cd23 = _mm512_permutex2var_ps(c, i23, d);
  v[0] = _mm512_shuffle_f32x4(ab01, cd01, 0x44);
  v[1] = _mm512_shuffle_f32x4(ab01, cd01, 0xee);
  v[2] = _mm512_shuffle_f32x4(ab23, cd23, 0x44);
  v[3] = _mm512_shuffle_f32x4(ab23, cd23, 0xee);
  // The first numbers of the next tile.
  const __m512i next0 = _mm512_castps_si512(_mm512_set1_ps(p[64])),
                next1 = _mm512_castps_si512(_mm512_set1_ps(p[65]));
  v[4] = _mm512_castsi512_ps(_mm512_alignr_epi32(next0, _mm512_castps_si512(v[0]), 1));
  v[5] = _mm512_castsi512_ps(_mm512_alignr_epi32(next1, _mm512_castps_si512(v[1]), 1));
#elif defined(__AVX2__)
  LoadFourths(p, v);
  __m256 next[4];
  LoadFourths(p + 4, next);
  v[4] = next[0], v[5] = next[1];
#else
  for (int i = 0; i < 6; ++i) {
    Real lanes[Lanes::kLanes];
    for (int l = 0; l < Lanes::kLanes; ++l) lanes[l] = p[4 * l + i];
    v[i] = Lanes::Load(lanes);
  }
#endif
}

// Four vectors of one number per tile to 4 * kLanes numbers in a row.
CELER_INLINE void StoreTiles(Real* p, Lanes::F a, Lanes::F b, Lanes::F c, Lanes::F d) {
#if defined(CELER_LANES_F16)
  vst4q_u16(&p->bits, uint16x8x4_t{{vreinterpretq_u16_f16(a), vreinterpretq_u16_f16(b),
                                    vreinterpretq_u16_f16(c), vreinterpretq_u16_f16(d)}});
#elif defined(__aarch64__)
  vst4q_f32(p, float32x4x4_t{{a, b, c, d}});
#elif defined(__AVX512F__)
  const __m512 ab0 = _mm512_unpacklo_ps(a, b), ab2 = _mm512_unpackhi_ps(a, b);
  const __m512 cd0 = _mm512_unpacklo_ps(c, d), cd2 = _mm512_unpackhi_ps(c, d);
  // tN: tiles N, N + 4, N + 8, N + 12
  const __m512 t0 = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab0), _mm512_castps_pd(cd0)));
  const __m512 t1 = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab0), _mm512_castps_pd(cd0)));
  const __m512 t2 = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab2), _mm512_castps_pd(cd2)));
  const __m512 t3 = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab2), _mm512_castps_pd(cd2)));
  const __m512 low01 = _mm512_shuffle_f32x4(t0, t1, 0x44), low23 = _mm512_shuffle_f32x4(t2, t3, 0x44);
  const __m512 high01 = _mm512_shuffle_f32x4(t0, t1, 0xee), high23 = _mm512_shuffle_f32x4(t2, t3, 0xee);
  _mm512_storeu_ps(p, _mm512_shuffle_f32x4(low01, low23, 0x88));
  _mm512_storeu_ps(p + 16, _mm512_shuffle_f32x4(low01, low23, 0xdd));
  _mm512_storeu_ps(p + 32, _mm512_shuffle_f32x4(high01, high23, 0x88));
  _mm512_storeu_ps(p + 48, _mm512_shuffle_f32x4(high01, high23, 0xdd));
#elif defined(__AVX2__)
  const __m256d ab0 = _mm256_castps_pd(_mm256_unpacklo_ps(a, b)),
                ab2 = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
  const __m256d cd0 = _mm256_castps_pd(_mm256_unpacklo_ps(c, d)),
                cd2 = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
  // tN: tiles N and N + 4
  const __m256 t0 = _mm256_castpd_ps(_mm256_unpacklo_pd(ab0, cd0)),
               t1 = _mm256_castpd_ps(_mm256_unpackhi_pd(ab0, cd0)),
               t2 = _mm256_castpd_ps(_mm256_unpacklo_pd(ab2, cd2)),
               t3 = _mm256_castpd_ps(_mm256_unpackhi_pd(ab2, cd2));
  _mm256_storeu_ps(p, _mm256_permute2f128_ps(t0, t1, 0x20));
  _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(t2, t3, 0x20));
  _mm256_storeu_ps(p + 16, _mm256_permute2f128_ps(t0, t1, 0x31));
  _mm256_storeu_ps(p + 24, _mm256_permute2f128_ps(t2, t3, 0x31));
#else
  Real lanes[4][Lanes::kLanes];
  Lanes::Store(lanes[0], a);
  Lanes::Store(lanes[1], b);
  Lanes::Store(lanes[2], c);
  Lanes::Store(lanes[3], d);
  for (int l = 0; l < Lanes::kLanes; ++l)
    for (int i = 0; i < 4; ++i) p[4 * l + i] = lanes[i][l];
#endif
}

template <int kNr>
void RunWinogradInput(const BasicWinogradInput<Real>& w) {
  using S = Lanes;
  constexpr int kL = S::kLanes, kSpan = 4 * kL + 4;
  const WinogradGeometry& g = w.geometry;
  alignas(64) Real patch[6 * kSpan];
  for (int64_t c = 0; c < w.channels; ++c) {
    const Real* const plane = w.in + (w.channel + c) * g.in_h * g.in_w;
    int64_t tiles;
    for (int64_t t = w.tile; t < w.tile + w.tiles; t += tiles) {
      const int64_t ty = t / g.tiles_x, tx = t % g.tiles_x;
      tiles = Least(Least(kL, g.tiles_x - tx), w.tile + w.tiles - t);
      const int64_t y = ty * 4 - g.pad_top, x = tx * 4 - g.pad_left;
      const Real* from = plane + y * g.in_w + x;
      int64_t stride = g.in_w;
      const bool inside = y >= 0 && y + 6 <= g.in_h && x >= 0 && x + 4 * tiles + 2 <= g.in_w &&
                          from + 5 * stride + kSpan <= w.in_end;
      if (!inside) {
        const int64_t first = Least(Most(-x, 0), kSpan);
        const int64_t last = Most(first, Least(Least(g.in_w - x, 4 * tiles + 2), kSpan));
        for (int64_t r = 0; r < 6; ++r) {
          Real* const to = patch + r * kSpan;
          if (y + r < 0 || y + r >= g.in_h) {
            for (int64_t i = 0; i < kSpan; i += kL) StoreSome(to + i, S::Set(0.0f), Least(kL, kSpan - i));
            continue;
          }
          for (int64_t i = 0; i < first; ++i) to[i] = Real{};
          CopyColumns(plane + (y + r) * g.in_w + x + first, 1, false, to + first, last - first);
          for (int64_t i = last; i < kSpan; ++i) to[i] = Real{};
        }
        from = patch;
        stride = kSpan;
      }
      S::F d[6][6];
#pragma GCC unroll 6
      for (int r = 0; r < 6; ++r) {
        LoadTiles(from + r * stride, d[r]);
        TransformIn(d[r][0], d[r][1], d[r][2], d[r][3], d[r][4], d[r][5]);
      }
      const int64_t at = t - w.tile, lane = at % kNr;
      Real* const to = w.to + at / kNr * w.panel + (w.channel + c) * kNr + lane;
      // What a vector store spills behind its tiles is overwritten by later ones, or nobody reads it.
      const bool whole = lane + kL <= kNr;
#pragma GCC unroll 6
      for (int i = 0; i < 6; ++i) {
        TransformIn(d[0][i], d[1][i], d[2][i], d[3][i], d[4][i], d[5][i]);
        if (whole) {
#pragma GCC unroll 6
          for (int r = 0; r < 6; ++r) S::Store(to + (r * 6 + i) * w.point_stride, d[r][i]);
        } else {
          for (int r = 0; r < 6; ++r) {
            Real lanes[kL];
            S::Store(lanes, d[r][i]);
            Real* const point = w.to + (r * 6 + i) * w.point_stride + (w.channel + c) * kNr;
            for (int64_t l = 0; l < tiles; ++l) point[(at + l) / kNr * w.panel + (at + l) % kNr] = lanes[l];
          }
        }
      }
    }
  }
}

inline void RunWinogradOutput(const BasicWinogradOutput<Real>& w) {
  using S = Lanes;
  constexpr int kL = S::kLanes, kSpan = 4 * kL;
  const WinogradGeometry& g = w.geometry;
  alignas(64) Real patch[4 * kSpan];
  const bool clip = w.f.kind == Pointwise::Kind::kClip;
  const bool quick = w.f.kind == Pointwise::Kind::kNone || (clip && !(w.add && w.add_last));
  const S::F low = S::Set(clip ? w.f.a : -INFINITY), high = S::Set(clip ? w.f.b : INFINITY);
  for (int64_t row = 0; row < w.rows; ++row) {
    const Real* const sums = w.sums + row * kWinogradPoints * w.sums_stride;
    const S::F bias = S::Set(w.bias ? w.bias[row] : 0.0f);
    const int64_t plane = row * g.out_h * g.out_w;
    int64_t tiles;
    for (int64_t t = w.tile; t < w.tile + w.tiles; t += tiles) {
      const int64_t ty = t / g.tiles_x, tx = t % g.tiles_x;
      tiles = Least(Least(kL, g.tiles_x - tx), w.tile + w.tiles - t);
      const Real* const from = sums + t - w.tile;
      S::F m[4][6];
#pragma GCC unroll 6
      for (int i = 0; i < 6; ++i) {
        const Real* const p = from + i * w.sums_stride;
        const int64_t down = 6 * w.sums_stride;
        TransformOut(S::Load(p), S::Load(p + down), S::Load(p + 2 * down), S::Load(p + 3 * down),
                     S::Load(p + 4 * down), S::Load(p + 5 * down), m[0][i], m[1][i], m[2][i], m[3][i]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        S::F o0, o1, o2, o3;
        TransformOut(m[r][0], m[r][1], m[r][2], m[r][3], m[r][4], m[r][5], o0, o1, o2, o3);
        StoreTiles(patch + r * kSpan, S::Add(o0, bias), S::Add(o1, bias), S::Add(o2, bias), S::Add(o3, bias));
      }
      const int64_t y = ty * 4, x = tx * 4, rows = Least(4, g.out_h - y), n = Least(4 * tiles, g.out_w - x);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = plane + (y + r) * g.out_w + x;
        const Real* const sum = patch + r * kSpan;
        const Real* const add = w.add ? w.add + at : nullptr;
        if (quick) {
          const auto finish = [&](S::F v, S::F more) {
            return ClampTo(add ? S::Add(v, more) : v, low, high);
          };
          Real* const out = w.out + at;
          int64_t i = 0;
          for (; i + kL <= n; i += kL)
            S::Store(out + i, finish(S::Load(sum + i), add ? S::Load(add + i) : bias));
          if (i < n)
            StoreSome(out + i, finish(S::Load(sum + i), add ? LoadSome(add + i, n - i) : bias), n - i);
        } else {
          FinishRow(w.f, sum, add, w.add_last, w.out + at, n);
        }
      }
    }
  }
}

}  // namespace
}  // namespace celer
