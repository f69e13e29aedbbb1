// A register tile of four rows times some tokens, with vectors as wide as the flags of the including file allow; see
// simd.h for the unnamed namespace. A sum has the same order in every tile: a token's result does not depend on the
// others.
#pragma once

#include "kernels/llm/attention/cpu/attention_rows.h"
#include "kernels/llm/latent/head_tile.h"

namespace celer {
namespace {

constexpr int kTileRows = 4;
// As many sums as the registers hold.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kTileTokens = 2;
#else
constexpr int kTileTokens = 4;
#endif

// sums[t][r] of the rows `w` and of kTokens tokens from x on.
template <class Rows, int kTokens>
CELER_INLINE void SumRows(const HeadTile& tile, const uint8_t* const (&w)[kTileRows], const float* x,
                          float (&sums)[kTileTokens][kTileRows]) {
  using S = Simd;
  S::F sum[kTokens][kTileRows];
  for (int t = 0; t < kTokens; ++t)
    for (int r = 0; r < kTileRows; ++r) sum[t][r] = S::Set(0);
  int64_t d = 0;
  for (; d + S::kLanes <= tile.cols; d += S::kLanes) {
    S::F part[kTileRows];
    for (int r = 0; r < kTileRows; ++r) part[r] = Rows::Load(w[r] + d * Rows::kBytes);
    for (int t = 0; t < kTokens; ++t) {
      const S::F in = S::Load(x + t * tile.x_stride + d);
      for (int r = 0; r < kTileRows; ++r) sum[t][r] = S::Fma(in, part[r], sum[t][r]);
    }
  }
  if (const int64_t some = tile.cols - d; some > 0) {
    S::F part[kTileRows];
    for (int r = 0; r < kTileRows; ++r) part[r] = LoadRowEnd<Rows>(w[r] + d * Rows::kBytes, some);
    for (int t = 0; t < kTokens; ++t) {
      const S::F in = LoadSome(x + t * tile.x_stride + d, some);
      for (int r = 0; r < kTileRows; ++r) sum[t][r] = S::Fma(in, part[r], sum[t][r]);
    }
  }
  for (int t = 0; t < kTokens; ++t) StoreSums(sums[t], sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
}

template <class Rows, int kTokens>
CELER_INLINE void TileBlock(const HeadTile& tile, int64_t row, int64_t token) {
  const int64_t rows = tile.rows - row < kTileRows ? tile.rows - row : kTileRows;
  const uint8_t* w[kTileRows];  // behind the last row, that one again
  for (int64_t r = 0; r < kTileRows; ++r) w[r] = tile.w + (row + (r < rows ? r : rows - 1)) * tile.row_bytes;
  float sums[kTileTokens][kTileRows];
  SumRows<Rows, kTokens>(tile, w, tile.x + token * tile.x_stride, sums);
  for (int t = 0; t < kTokens; ++t)
    for (int64_t r = 0; r < rows; ++r) tile.out[(token + t) * tile.out_stride + row + r] = sums[t][r];
}

template <class Rows>
void HeadTileOf(const HeadTile& tile) {
  for (int64_t row = 0; row < tile.rows; row += kTileRows) {
    int64_t t = 0;
    for (; t + kTileTokens <= tile.tokens; t += kTileTokens) TileBlock<Rows, kTileTokens>(tile, row, t);
    for (; t < tile.tokens; ++t) TileBlock<Rows, 1>(tile, row, t);
  }
}

CELER_INLINE void HeadTileRowsLanes(const HeadTile& tile) {
  switch (tile.kind) {
    case HeadWeights::kF32:
      return HeadTileOf<F32Rows>(tile);
    case HeadWeights::kF16:
      return HeadTileOf<F16Rows>(tile);
    case HeadWeights::kBf16:
      return HeadTileOf<Bf16Rows>(tile);
  }
}

}  // namespace
}  // namespace celer
