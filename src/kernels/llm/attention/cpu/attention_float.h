// The two matrix products of a tile in f32, for every KV type and instruction set; see simd.h for the unnamed
// namespace.
#pragma once

#include "kernels/llm/attention/cpu/attention_rows.h"
#include "kernels/llm/attention/cpu/attention_tile_run.h"

namespace celer {
namespace {

template <class Rows>
struct FloatKernel {
  using S = Simd;
  // The register tile: queries that share each load of a key, as many accumulators as the registers hold,
  // times four keys.
#if defined(__AVX2__) && !defined(__AVX512F__)
  static constexpr int kRows = 2;
#else
  static constexpr int kRows = 4;
#endif
  static constexpr bool kScaled = Rows::kBytes == 1;    // i8: a scale per key
  static constexpr bool kMayDecode = Rows::kBytes < 4;  // worth it when many rows share a segment

  // The query times a power of two that brings it below kQueryRoom; returns the inverse of that power.
  static float PrepareQuery(const float* q, int64_t dim, int64_t padded, float* out) {
    S::F tops = S::Set(0);
    int64_t d = 0;
    for (; d + S::kLanes <= dim; d += S::kLanes) tops = S::Max(tops, S::Abs(S::Load(q + d)));
    if (d < dim) tops = S::Max(tops, S::Abs(LoadSome(q + d, dim - d)));
    const PowerOfTwo power(S::MaxOf(tops));
    for (d = 0; d < dim; ++d) out[d] = q[d] * (power.below * kQueryRoom);
    for (; d < padded; ++d) out[d] = 0;
    const float unit = power.above * (1 / kQueryRoom);
    return unit < 0x1p127f ? unit : 0x1p127f;
  }
  // The weights (exponentials) of one step of the softmax, times the scales of their values if there are any;
  // returns the sum of the weights alone.
  static CELER_INLINE float SoftmaxWeights(const float* scores, float max, const float* v_scale,
                                           float* weights) {
    constexpr int kN = kSoftmaxKeys / S::kLanes < 4 ? kSoftmaxKeys / S::kLanes : 4;
    S::F sum = S::Set(0);
    const S::F base = S::Set(max);
    for (int64_t at = 0; at < kSoftmaxKeys; at += kN * S::kLanes) {
      S::F weight[kN];
      for (int i = 0; i < kN; ++i) weight[i] = S::Sub(S::Load(scores + at + i * S::kLanes), base);
      ExpNonPositive(weight);
      for (int i = 0; i < kN; ++i) {
        const int64_t key = at + i * S::kLanes;
        weight[i] = S::Mul(weight[i], S::Set(kWeightRoom));
        sum = S::Add(sum, weight[i]);
        S::Store(weights + key, v_scale ? S::Mul(weight[i], S::Load(v_scale + key)) : weight[i]);
      }
    }
    return S::Sum(sum);
  }

  static void Decode(const uint8_t* rows, int64_t row_bytes, const float* /*scales*/, int64_t keys,
                     int64_t dim, int64_t padded, float* out) {
    for (int64_t k = 0; k < keys; ++k) {
      const uint8_t* row = rows + k * row_bytes;
      int64_t d = 0;
      for (; d + S::kLanes <= dim; d += S::kLanes)
        S::Store(out + k * padded + d, Rows::Load(row + d * Rows::kBytes));
      if (d < dim) S::Store(out + k * padded + d, LoadRowEnd<Rows>(row + d * Rows::kBytes, dim - d));
    }
  }

  template <class From, int kR>
  static CELER_INLINE void ScoreRows(const float* q, int64_t q_stride, const uint8_t* k, int64_t row_bytes,
                                     int64_t keys, int64_t dim, float* scores) {
    for (int64_t key = 0; key < keys; key += 4) {
      const uint8_t* row = k + key * row_bytes;
      S::F sum[kR][4];
      for (int r = 0; r < kR; ++r)
        for (int i = 0; i < 4; ++i) sum[r][i] = S::Set(0);
      int64_t d = 0;
      for (; d + S::kLanes <= dim; d += S::kLanes) {
        S::F part[4];
        for (int i = 0; i < 4; ++i) part[i] = From::Load(row + i * row_bytes + d * From::kBytes);
        for (int r = 0; r < kR; ++r) {
          const S::F query = S::Load(q + r * q_stride + d);
          for (int i = 0; i < 4; ++i) sum[r][i] = S::Fma(query, part[i], sum[r][i]);
        }
      }
      if (d < dim) {
        S::F part[4];
        for (int i = 0; i < 4; ++i)
          part[i] = LoadRowEnd<From>(row + i * row_bytes + d * From::kBytes, dim - d);
        for (int r = 0; r < kR; ++r) {
          const S::F query = S::Load(q + r * q_stride + d);
          for (int i = 0; i < 4; ++i) sum[r][i] = S::Fma(query, part[i], sum[r][i]);
        }
      }
      for (int r = 0; r < kR; ++r)
        StoreSums(scores + r * kSoftmaxKeys + key, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    }
  }

  template <class From>
  static void ScoresFrom(const float* q, int64_t q_stride, int64_t rows, const uint8_t* k, int64_t row_bytes,
                         int64_t keys, int64_t dim, float* scores) {
    for (; rows >= kRows; rows -= kRows, q += kRows * q_stride, scores += kRows * kSoftmaxKeys)
      ScoreRows<From, kRows>(q, q_stride, k, row_bytes, keys, dim, scores);
    if (rows == 3) ScoreRows<From, 3>(q, q_stride, k, row_bytes, keys, dim, scores);
    if (rows == 2) ScoreRows<From, 2>(q, q_stride, k, row_bytes, keys, dim, scores);
    if (rows == 1) ScoreRows<From, 1>(q, q_stride, k, row_bytes, keys, dim, scores);
  }
  static void Scores(const float* q, int64_t q_stride, int64_t rows, const uint8_t* k, int64_t row_bytes,
                     int64_t keys, int64_t dim, float* scores) {
    ScoresFrom<Rows>(q, q_stride, rows, k, row_bytes, keys, dim, scores);
  }
  static void DecodedScores(const float* q, int64_t q_stride, int64_t rows, const float* k, int64_t stride,
                            int64_t keys, int64_t dim, float* scores) {
    ScoresFrom<F32Rows>(q, q_stride, rows, reinterpret_cast<const uint8_t*>(k), stride * 4, keys, dim,
                        scores);
  }

  // acc[r, d .. d + kV vectors) += sum over keys of weight * value; `some` < kLanes: the last, partial
  // vector.
  template <class From, int kR, int kV>
  static CELER_INLINE void ValueColumns(const float* weights, const uint8_t* const* v, int64_t row_bytes,
                                        int64_t begin, int64_t end, int64_t d, int64_t some, float* acc,
                                        int64_t stride) {
    S::F sum[kR][kV];
    for (int r = 0; r < kR; ++r)
      for (int i = 0; i < kV; ++i) sum[r][i] = S::Load(acc + r * stride + d + i * S::kLanes);
    for (int64_t key = begin; key < end;) {
      const uint8_t* row = v[key / kSegmentKeys] + key % kSegmentKeys * row_bytes + d * From::kBytes;
      const int64_t segment_end = (key / kSegmentKeys + 1) * kSegmentKeys;
      for (const int64_t to = segment_end < end ? segment_end : end; key < to; ++key, row += row_bytes) {
        S::F part[kV];
        if (kV == 1 && some < S::kLanes)
          part[0] = LoadRowEnd<From>(row, some);
        else
          for (int i = 0; i < kV; ++i) part[i] = From::Load(row + i * S::kLanes * From::kBytes);
        for (int r = 0; r < kR; ++r) {
          const S::F weight = S::Set(weights[r * kSoftmaxKeys + key]);
          for (int i = 0; i < kV; ++i) sum[r][i] = S::Fma(weight, part[i], sum[r][i]);
        }
      }
    }
    for (int r = 0; r < kR; ++r)
      for (int i = 0; i < kV; ++i) S::Store(acc + r * stride + d + i * S::kLanes, sum[r][i]);
  }

  template <class From, int kR>
  static CELER_INLINE void ValueRows(const float* weights, const uint8_t* const* v, int64_t row_bytes,
                                     int64_t begin, int64_t end, int64_t dim, float* acc, int64_t stride) {
    constexpr int kL = S::kLanes;
    constexpr int kWide = kR == 1 ? 8 : 4;
    int64_t d = 0;
    for (; d + kWide * kL <= dim; d += kWide * kL)
      ValueColumns<From, kR, kWide>(weights, v, row_bytes, begin, end, d, kL, acc, stride);
    for (; d + 2 * kL <= dim; d += 2 * kL)
      ValueColumns<From, kR, 2>(weights, v, row_bytes, begin, end, d, kL, acc, stride);
    for (; d < dim; d += kL)
      ValueColumns<From, kR, 1>(weights, v, row_bytes, begin, end, d, dim - d < kL ? dim - d : kL, acc,
                                stride);
  }

  template <class From>
  static void ValuesFrom(const float* weights, int64_t rows, const uint8_t* const* v, int64_t row_bytes,
                         int64_t begin, int64_t end, int64_t dim, float* acc, int64_t stride) {
    for (; rows >= kRows; rows -= kRows, weights += kRows * kSoftmaxKeys, acc += kRows * stride)
      ValueRows<From, kRows>(weights, v, row_bytes, begin, end, dim, acc, stride);
    if (rows == 3) ValueRows<From, 3>(weights, v, row_bytes, begin, end, dim, acc, stride);
    if (rows == 2) ValueRows<From, 2>(weights, v, row_bytes, begin, end, dim, acc, stride);
    if (rows == 1) ValueRows<From, 1>(weights, v, row_bytes, begin, end, dim, acc, stride);
  }
  static void Values(const float* weights, int64_t rows, const uint8_t* const* v, int64_t row_bytes,
                     int64_t begin, int64_t end, int64_t dim, float* acc, int64_t stride) {
    ValuesFrom<Rows>(weights, rows, v, row_bytes, begin, end, dim, acc, stride);
  }
  static void DecodedValues(const float* weights, int64_t rows, const uint8_t* const* v, int64_t v_stride,
                            int64_t begin, int64_t end, int64_t dim, float* acc, int64_t stride) {
    ValuesFrom<F32Rows>(weights, rows, v, v_stride * 4, begin, end, dim, acc, stride);
  }
};

CELER_INLINE void AttendTileFloat(const AttentionTile& tile) {
  switch (tile.kind) {
    case KvKind::kF32:
      return TileRun<FloatKernel<F32Rows>>(tile).Run();
    case KvKind::kF16:
      return TileRun<FloatKernel<F16Rows>>(tile).Run();
    case KvKind::kBf16:
      return TileRun<FloatKernel<Bf16Rows>>(tile).Run();
    case KvKind::kI8:
      return TileRun<FloatKernel<I8Rows>>(tile).Run();
  }
}

}  // namespace
}  // namespace celer
