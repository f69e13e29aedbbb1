// Micro-kernels for vectors of any width. A register tile is kMr rows by 3 vectors of columns: its
// accumulators stay in registers, and each vector of b is used kMr times. See simd.h for why all of it is in
// an unnamed namespace.
#pragma once

#include "kernels/shared/gemm/epilogue_lanes.h"
#include "kernels/shared/gemm/gemm_kernels.h"
#include "kernels/shared/gemm/pack_lanes.h"
#include "kernels/shared/lanes.h"

namespace celer {
namespace {

// ---- accumulators -----------------------------------------------------------------------------------------

template <int kRows, int kVectors>
struct Sums {
  Lanes::F v[kRows][kVectors];
};

// Accumulates k steps, from zero. Rows of `a` are kMr apart whatever kRows is.
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

// A vector that holds the rows of a panel, kMr of them or half as many.
#if defined(__AVX512F__)
struct RowLanes {
  static constexpr int kLanes = 8;
  using F = __m256;
  static CELER_INLINE F Load(const float* p) { return _mm256_loadu_ps(p); }
  static CELER_INLINE void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static CELER_INLINE F Set(float v) { return _mm256_set1_ps(v); }
  static CELER_INLINE F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static CELER_INLINE F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
};
#elif defined(__AVX2__)
struct RowLanes {
  static constexpr int kLanes = 4;
  using F = __m128;
  static CELER_INLINE F Load(const float* p) { return _mm_loadu_ps(p); }
  static CELER_INLINE void Store(float* p, F v) { _mm_storeu_ps(p, v); }
  static CELER_INLINE F Set(float v) { return _mm_set1_ps(v); }
  static CELER_INLINE F Add(F a, F b) { return _mm_add_ps(a, b); }
  static CELER_INLINE F Fma(F a, F b, F c) { return _mm_fmadd_ps(a, b, c); }
};
#else
using RowLanes = Lanes;
#endif

// The same for the few columns at the end of a matrix (49 pixels are four panels of twelve and one column):
// lanes are rows, so the work goes with the number of columns and not with the vector that holds them. The
// other lanes of `s` are discarded.
template <int kMr, int kCols>
struct NarrowSteps {
  static constexpr int kParts = kMr / RowLanes::kLanes;
  static constexpr int kSets = kCols * kParts >= 8 ? 1 : kCols * kParts >= 4 ? 2 : 4;

  static CELER_INLINE void Run(const Real* a, const Real* b, int64_t k, Sums<kMr, 1>& s) {
    using R = RowLanes;
    R::F sum[kSets][kCols][kParts];
    for (int i = 0; i < kSets; ++i)
      for (int c = 0; c < kCols; ++c)
        for (int p = 0; p < kParts; ++p) sum[i][c][p] = R::Set(0.0f);
    int64_t i = 0;
    for (; i + kSets <= k; i += kSets)
#pragma GCC unroll 4
      for (int j = 0; j < kSets; ++j) Step(a + (i + j) * kMr, b + (i + j) * kNr, sum[j]);
    for (; i < k; ++i) Step(a + i * kMr, b + i * kNr, sum[0]);
    alignas(64) Real cols[kCols][kMr];
    for (int c = 0; c < kCols; ++c)
      for (int p = 0; p < kParts; ++p) {
        for (int j = 1; j < kSets; ++j) sum[0][c][p] = R::Add(sum[0][c][p], sum[j][c][p]);
        R::Store(cols[c] + p * R::kLanes, sum[0][c][p]);
      }
    for (int r = 0; r < kMr; ++r) {
      if constexpr (kCols == 1) {
        s.v[r][0] = Lanes::Set(cols[0][r]);
      } else {
        Real row[Lanes::kLanes] = {};
        for (int c = 0; c < kCols; ++c) row[c] = cols[c][r];
        s.v[r][0] = Lanes::Load(row);
      }
    }
  }

 private:
  static CELER_INLINE void Step(const Real* a, const Real* b, RowLanes::F (&sum)[kCols][kParts]) {
    using R = RowLanes;
    R::F rows[kParts];
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) rows[p] = R::Load(a + p * R::kLanes);
#pragma GCC unroll 4
    for (int c = 0; c < kCols; ++c) {
      const R::F factor = R::Set(b[c]);
#pragma GCC unroll 2
      for (int p = 0; p < kParts; ++p) sum[c][p] = R::Fma(rows[p], factor, sum[c][p]);
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

// Activations that need more registers than the accumulators leave: over the stored tile, which is in L1.
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

// `add` may alias `out`: where f is applied to the stored tile, a residual that comes last has been read by
// then only if it does not alias. Such a tile goes through a buffer (NeedsBuffer).
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

template <int kMr, int kCols>
void NarrowTileOf(const TileJob& t) {
  RunTile<kMr, 1, NarrowSteps<kMr, kCols>>(t);
}

// Tiles of one, two and four columns, of all rows of a panel; those that would gain nothing are left out.
template <int kMr>
struct NarrowTable {
  static constexpr int64_t kMost = kMr / (2 * NarrowSteps<kMr, 1>::kParts);
  TileFn at[5] = {};
  constexpr NarrowTable() {
    at[1] = NarrowTileOf<kMr, 1>;
    at[2] = NarrowTileOf<kMr, 2>;
    if constexpr (kMost >= 4) at[3] = at[4] = NarrowTileOf<kMr, 4>;
  }
};

template <class T>
CELER_INLINE void CopyNumbers(const T* from, T* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// An edge tile whose last vector sticks out of the matrix, or whose residual would be overwritten too early:
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
  static constexpr NarrowTable<kMr> kNarrow{};
  static constexpr int64_t kLeastNarrow = 32;  // steps that pay for turning the sums around

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
    const bool narrow = cols <= kNarrow.kMost && rows == kMr && g.k >= kLeastNarrow;
    const TileFn run = narrow ? kNarrow.at[cols] : kTiles.at[rows][vectors];
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
    // The streamed operand comes from the L3 cache or from memory: prefetched a panel ahead, a piece with
    // each tile.
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

}  // namespace
}  // namespace celer
