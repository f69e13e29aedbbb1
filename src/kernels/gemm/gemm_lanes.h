// Packing and tiles for vectors of any width. A tile is kMr rows by 3 vectors of columns: its sums stay in
// registers, and each vector of b is used kMr times. See simd.h for why all of it is in an unnamed namespace.
#pragma once

#include "kernels/gemm/epilogue_lanes.h"
#include "kernels/gemm/gemm_kernels.h"
#include "kernels/gemm/strided_load.h"
#include "kernels/lanes.h"

namespace celer {
namespace {

constexpr int kTileVectors = 3;
constexpr int kNr = kTileVectors * Lanes::kLanes;

CELER_INLINE int64_t MinOf(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// ---- sums -------------------------------------------------------------------------------------------------

template <int kRows, int kVectors>
struct Sums {
  Lanes::F v[kRows][kVectors];
};

// Sums of k steps, from zero. Rows of `a` are kMr apart whatever kRows is.
template <int kMr, int kRows, int kVectors>
struct PlainSteps {
  static CELER_INLINE void Run(const Real* a, const Real* b, int64_t k, Sums<kRows, kVectors>& s) {
    using S = Lanes;
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) s.v[r][v] = S::Set(0.0f);
    for (int64_t i = 0; i < k; ++i) {
      S::F bv[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) bv[v] = S::Load(b + v * S::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const S::F av = S::Set(a[r]);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) s.v[r][v] = S::Fma(av, bv[v], s.v[r][v]);
      }
      a += kMr;
      b += kNr;
    }
  }
};

// ---- one tile ---------------------------------------------------------------------------------------------

struct TileJob {
  const Real* a;
  const Real* b;
  int64_t k;
  Real* out;
  int64_t out_stride;
  bool accumulate, finish;
  BasicEpilogue<Real> epilogue;  // its pointers begin with this tile
};

// The functions that need more registers than the sums leave: over the stored tile, which is in L1.
template <int kVectors>
__attribute__((noinline)) void FinishStored(const TileJob& t, int rows) {
  using S = Lanes;
  const BasicEpilogue<Real>& e = t.epilogue;
  WithPointwiseLanes(e.f, [&](auto f) {
    for (int r = 0; r < rows; ++r) {
      Real* out = t.out + r * t.out_stride;
      const Real* add = e.add_last && e.add ? e.add + r * e.add_stride : nullptr;
      S::F x[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) x[v] = S::Load(out + v * S::kLanes);
      f(x);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        if (add) x[v] = S::Add(x[v], S::Load(add + v * S::kLanes));
        S::Store(out + v * S::kLanes, x[v]);
      }
    }
  });
}

// `add` may be `out`: where f is applied to the stored tile, a residual that comes last has been read by then
// only if it lies elsewhere. Such a tile goes through a buffer (NeedsBuffer).
template <int kRows, int kVectors, class Steps>
CELER_INLINE void RunTile(const TileJob& t) {
  using S = Lanes;
  Sums<kRows, kVectors> s;
  Steps::Run(t.a, t.b, t.k, s);
  const BasicEpilogue<Real>& e = t.epilogue;
  if (t.accumulate) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        s.v[r][v] = S::Add(s.v[r][v], S::Load(t.out + r * t.out_stride + v * S::kLanes));
  }
  bool store_first = false;
  if (t.finish) {
    if (e.row_bias) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const S::F bias = S::Set(e.row_bias[r]);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) s.v[r][v] = S::Add(s.v[r][v], bias);
      }
    }
    if (e.col_bias) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        const S::F bias = FromFloats(e.col_bias + v * S::kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) s.v[r][v] = S::Add(s.v[r][v], bias);
      }
    }
    store_first = e.f.kind > Pointwise::Kind::kClip;
    if (e.add && !e.add_last) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v)
          s.v[r][v] = S::Add(s.v[r][v], S::Load(e.add + r * e.add_stride + v * S::kLanes));
    }
    if (e.f.kind == Pointwise::Kind::kClip) {
      const S::F low = S::Set(e.f.a), high = S::Set(e.f.b);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) s.v[r][v] = ClampTo(s.v[r][v], low, high);
    }
    if (e.add && e.add_last && !store_first) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v)
          s.v[r][v] = S::Add(s.v[r][v], S::Load(e.add + r * e.add_stride + v * S::kLanes));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) S::Store(t.out + r * t.out_stride + v * S::kLanes, s.v[r][v]);
  if (store_first) FinishStored<kVectors>(t, kRows);
}

using TileFn = void (*)(const TileJob& t);

template <template <int, int, int> class Steps, int kMr, int kRows, int kVectors>
void TileOf(const TileJob& t) {
  RunTile<kRows, kVectors, Steps<kMr, kRows, kVectors>>(t);
}

template <template <int, int, int> class Steps, int kMr>
struct TileTable {
  TileFn at[9][kTileVectors + 1] = {};
  template <int kRows>
  constexpr void Fill() {
    if constexpr (kRows <= kMr) {
      at[kRows][1] = TileOf<Steps, kMr, kRows, 1>;
      at[kRows][2] = TileOf<Steps, kMr, kRows, 2>;
      at[kRows][3] = TileOf<Steps, kMr, kRows, 3>;
      Fill<kRows + 1>();
    }
  }
  constexpr TileTable() { Fill<1>(); }
};

template <class T>
CELER_INLINE void CopyNumbers(const T* from, T* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// A tile whose last vector sticks out of the matrix, or whose residual would be overwritten too early:
// computed in a buffer.
template <int kMr>
__attribute__((noinline)) void BufferedTile(TileFn run, TileJob t, int64_t rows, int64_t cols) {
  alignas(64) Real out[kMr * kNr], add[kMr * kNr];
  alignas(64) float col_bias[kNr];
  Real* const to = t.out;
  const int64_t to_stride = t.out_stride;
  if (t.accumulate)
    for (int64_t r = 0; r < rows; ++r) CopyNumbers(to + r * to_stride, out + r * kNr, cols);
  if (t.finish && t.epilogue.add) {
    for (int64_t r = 0; r < rows; ++r)
      CopyNumbers(t.epilogue.add + r * t.epilogue.add_stride, add + r * kNr, cols);
    t.epilogue.add = add;
    t.epilogue.add_stride = kNr;
  }
  if (t.finish && t.epilogue.col_bias) {
    CopyNumbers(t.epilogue.col_bias, col_bias, cols);
    t.epilogue.col_bias = col_bias;
  }
  t.out = out;
  t.out_stride = kNr;
  run(t);
  for (int64_t r = 0; r < rows; ++r) CopyNumbers(out + r * kNr, to + r * to_stride, cols);
}

// Of n numbers in so many pieces, in whole cache lines.
CELER_INLINE int64_t RoundedPiece(int64_t n, int64_t pieces) {
  return (n / pieces + kLineReals - 1) / kLineReals * kLineReals;
}
CELER_INLINE void PrefetchPiece(const Real* p, int64_t n) {
  for (int64_t i = 0; i < n; i += kLineReals) __builtin_prefetch(p + i, 0, 2);
}

template <template <int, int, int> class Steps, int kMr>
struct BlockOf {
  static constexpr TileTable<Steps, kMr> kTiles{};

  // Fills in what differs from tile to tile; the rest of `t` is the block's.
  static CELER_INLINE void Tile(const BasicGemmBlock<Real>& g, TileJob& t, int64_t i, int64_t j,
                                bool through_buffer) {
    const int64_t rows = MinOf(kMr, g.m - i), cols = MinOf(kNr, g.n - j);
    const BasicEpilogue<Real>& e = g.epilogue;
    t.a = g.a + i / kMr * g.a_panel;
    t.b = g.b + j / kNr * g.b_panel;
    t.out = g.out + i * g.out_stride + j;
    if (e.row_bias) t.epilogue.row_bias = e.row_bias + i;
    if (e.col_bias) t.epilogue.col_bias = e.col_bias + j;
    if (e.add) t.epilogue.add = e.add + i * e.add_stride + j;
    const int64_t vectors = (cols + Lanes::kLanes - 1) / Lanes::kLanes;
    const TileFn run = kTiles.at[rows][vectors];
    // The output is needed when the sums are done, which is long enough to fetch it.
    for (int64_t r = 0; r < rows; ++r) {
      __builtin_prefetch(t.out + r * t.out_stride, 1);
      __builtin_prefetch(t.out + r * t.out_stride + cols - 1, 1);
    }
    if (through_buffer || cols % Lanes::kLanes)
      BufferedTile<kMr>(run, t, rows, cols);
    else
      run(t);
  }

  static void Run(const BasicGemmBlock<Real>& g) {
    const bool through_buffer = g.finish && g.epilogue.add == g.out && g.epilogue.add &&
                                g.epilogue.add_last && g.epilogue.f.kind > Pointwise::Kind::kClip;
    TileJob t{.a = nullptr,
              .b = nullptr,
              .k = g.k,
              .out = nullptr,
              .out_stride = g.out_stride,
              .accumulate = g.accumulate,
              .finish = g.finish,
              .epilogue = g.epilogue};
    // What goes by comes from the L3 cache or from memory, a panel ahead, a piece with each tile.
    if (g.a_stays) {
      const int64_t piece = RoundedPiece(g.k * kNr, (g.m + kMr - 1) / kMr);
      for (int64_t j = 0; j < g.n; j += kNr) {
        const Real* next = g.b + (j / kNr + 1) * g.b_panel;
        for (int64_t i = 0; i < g.m; i += kMr, next += piece) {
          if (j + kNr < g.n) PrefetchPiece(next, piece);
          Tile(g, t, i, j, through_buffer);
        }
      }
    } else {
      const int64_t piece = RoundedPiece(g.k * kMr, (g.n + kNr - 1) / kNr);
      for (int64_t i = 0; i < g.m; i += kMr) {
        const Real* next = g.a + (i / kMr + 1) * g.a_panel;
        for (int64_t j = 0; j < g.n; j += kNr, next += piece) {
          if (i + kMr < g.m) PrefetchPiece(next, piece);
          Tile(g, t, i, j, through_buffer);
        }
      }
    }
  }
};

// ---- packing ----------------------------------------------------------------------------------------------

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
        for (int l = 0; l < kWidth; ++l) to[l] = l < rest ? in[l] : Real{};
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

// One run under one tap: row[x + i * stride] for i < count, 0 where that is outside [0, w).
CELER_INLINE void GatherRun(const Real* row, int64_t x, int64_t stride, int64_t count, int64_t w, Real* to) {
  for (int64_t i = 0; i < count; ++i, x += stride) to[i] = x >= 0 && x < w ? row[x] : Real{};
}

template <int kStride>
CELER_INLINE Lanes::F LoadStrided(const Real* p) {
  if constexpr (kStride == 1) return Lanes::Load(p);
  return LoadEverySecond(p);
}

// The taps of one row of the kernel for a panel that is one run, all inside the input.
template <int kStride>
CELER_INLINE void CopyTaps(const Real* from, int64_t step, int64_t taps, Real* to) {
  using S = Lanes;
  for (int64_t i = 0; i < taps; ++i, from += step, to += kNr)
#pragma GCC unroll 3
    for (int v = 0; v < kTileVectors; ++v)
      S::Store(to + v * S::kLanes, LoadStrided<kStride>(from + v * kStride * S::kLanes));
}

// A panel is written row after row, so a vector may spill over the end of a run or of a row: what follows is
// written later. Only the last row of the last panel spills into the slack (kPackSlack).
inline void PackIm2col(const Im2col& g, const Real* in, const Real* in_end, int64_t k_begin, int64_t k_end,
                       int64_t n_begin, int64_t n_end, Real* out, int64_t panel) {
  using S = Lanes;
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
      const Real* const channel = in + c * plane;
      const int64_t y0 = runs[0].y + ky * g.dilation_h;
      const Real* const first = channel + y0 * g.in_w + runs[0].x + kx * g.dilation_w;
      if (one_run && y0 >= 0 && y0 < g.in_h && first + (taps - 1) * g.dilation_w + kNr * s <= in_end) {
        if (s == 1)
          CopyTaps<1>(first, g.dilation_w, taps, to);
        else
          CopyTaps<2>(first, g.dilation_w, taps, to);
        to += taps * kNr;
      } else {
        for (int64_t i = 0; i < taps; ++i, to += kNr) {
          for (int r = 0; r < count; ++r) {
            const Im2colRun& run = runs[r];
            const int64_t y = run.y + ky * g.dilation_h, x = run.x + (kx + i) * g.dilation_w;
            Real* const lane = to + run.lane;
            if (y < 0 || y >= g.in_h) {
              for (int64_t l = 0; l < run.count; l += S::kLanes) S::Store(lane + l, S::Set(0.0f));
              continue;
            }
            const Real* const row = channel + y * g.in_w;
            const int64_t vectors = (run.count + S::kLanes - 1) / S::kLanes;
            const bool inside =
                x >= 0 && x + (run.count - 1) * s < g.in_w && row + x + vectors * S::kLanes * s <= in_end;
            if (inside && s == 1) {
              for (int64_t v = 0; v < vectors; ++v)
                S::Store(lane + v * S::kLanes, S::Load(row + x + v * S::kLanes));
            } else if (inside && s == 2) {
              for (int64_t v = 0; v < vectors; ++v)
                S::Store(lane + v * S::kLanes, LoadEverySecond(row + x + 2 * v * S::kLanes));
            } else {
              GatherRun(row, x, s, run.count, g.in_w, lane);
            }
          }
          for (int64_t l = last - n; l < kNr; ++l) to[l] = Real{};
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
