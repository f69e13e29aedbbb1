// Tiles over f16 and int8 KV in f16 arithmetic: eight products per instruction instead of four, and no
// conversion of keys and values.
//
// Accuracy: sums in f16 are short, 32 products for a score, kSpanKeys for weighted values, and are added up
// in f32 from there on; queries are brought to [0.5, 1) by a power of two, weights are at most 1. A score's
// error is then that of rounding its key to f16, once more; an output's is about 2^-11 of the largest value.
#include "kernels/attention/attention_float.h"
#include "kernels/attention/attention_half_lanes.h"
#include "kernels/attention/attention_half_quads.h"

namespace celer {
namespace {

constexpr int64_t kChainDims = 64;  // products summed up in f16: kChainDims / kHalfLanes per lane

template <bool kInt8>
struct HalfKernel {
  using Query = __fp16;
  using Weight = __fp16;
  static constexpr int kRows = 4;
  static constexpr bool kScaled = false;  // int8 is scaled when it is decoded
  static constexpr bool kRowScale = true;
  static constexpr bool kMayDecode = false;
  static constexpr bool kDecodeAlways = kInt8;
  static constexpr int kPerFloat = 2;

  static float PrepareQuery(const float* q, int64_t dim, int64_t padded, float scale, __fp16* out) {
    return HalfQuery(q, dim, padded, scale, out);
  }
  // The sum is that of the rounded weights.
  static CELER_INLINE float Weigh(const float* scores, float max, const float* /*v_scale*/, __fp16* weights) {
    const float32x4_t base = vdupq_n_f32(max);
    float32x4_t sum[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    const auto add = [&](float16x8_t pair) __attribute__((always_inline)) {
      sum[0] = vaddq_f32(sum[0], vcvt_f32_f16(vget_low_f16(pair)));
      sum[1] = vaddq_f32(sum[1], vcvt_high_f32_f16(pair));
    };
    for (int64_t at = 0; at < kSoftmaxKeys; at += 4 * kHalfLanes) {
      float16x8_t x[4];
      for (int i = 0; i < 4; ++i) {
        const float* s = scores + at + i * kHalfLanes;
        x[i] =
            vcvt_high_f16_f32(vcvt_f16_f32(vsubq_f32(vld1q_f32(s), base)), vsubq_f32(vld1q_f32(s + 4), base));
      }
      ExpOfHalf(x);
      for (int i = 0; i < 4; ++i) vst1q_f16(weights + at + i * kHalfLanes, x[i]);
      add(vaddq_f16(x[0], x[1]));
      add(vaddq_f16(x[2], x[3]));
    }
    return vaddvq_f32(vaddq_f32(sum[0], sum[1]));
  }

  static void Decode(const uint8_t* rows, int64_t row_bytes, const float* scales, int64_t keys, int64_t dim,
                     int64_t padded, float* out) {
    DecodeToHalf(rows, row_bytes, scales, keys, dim, padded, reinterpret_cast<__fp16*>(out));
  }

  template <int kR>
  static CELER_INLINE void ScoreRows(const __fp16* q, int64_t q_stride, const uint8_t* k, int64_t row_bytes,
                                     int64_t keys, int64_t dim, float* scores) {
    for (int64_t key = 0; key < keys; key += 4) {
      const uint8_t* row = k + key * row_bytes;
      float32x4_t total[kR];
      for (int r = 0; r < kR; ++r) total[r] = vdupq_n_f32(0);
      for (int64_t chain = 0; chain < dim; chain += kChainDims) {
        float16x8_t sum[kR][4];
        for (int r = 0; r < kR; ++r)
          for (int i = 0; i < 4; ++i) sum[r][i] = vdupq_n_f16(0);
        const auto multiply = [&](int64_t d, float16x8_t k0, float16x8_t k1, float16x8_t k2, float16x8_t k3)
            __attribute__((always_inline)) {
          for (int r = 0; r < kR; ++r) {
            const float16x8_t query = vld1q_f16(q + r * q_stride + d);
            sum[r][0] = vfmaq_f16(sum[r][0], query, k0);
            sum[r][1] = vfmaq_f16(sum[r][1], query, k1);
            sum[r][2] = vfmaq_f16(sum[r][2], query, k2);
            sum[r][3] = vfmaq_f16(sum[r][3], query, k3);
          }
        };
        const uint8_t *k0 = row, *k1 = row + row_bytes, *k2 = k1 + row_bytes, *k3 = k2 + row_bytes;
        if (dim - chain >= kChainDims) {
#pragma GCC unroll 8
          for (int64_t d = chain; d < chain + kChainDims; d += kHalfLanes)
            multiply(d, LoadHalf(k0 + d * 2), LoadHalf(k1 + d * 2), LoadHalf(k2 + d * 2),
                     LoadHalf(k3 + d * 2));
        } else {
          int64_t d = chain;
          for (; d + kHalfLanes <= dim; d += kHalfLanes)
            multiply(d, LoadHalf(k0 + d * 2), LoadHalf(k1 + d * 2), LoadHalf(k2 + d * 2),
                     LoadHalf(k3 + d * 2));
          if (d < dim)
            multiply(d, LoadHalfEnd(k0 + d * 2, dim - d), LoadHalfEnd(k1 + d * 2, dim - d),
                     LoadHalfEnd(k2 + d * 2, dim - d), LoadHalfEnd(k3 + d * 2, dim - d));
        }
        for (int r = 0; r < kR; ++r) {
          const float16x8_t pairs =
              vpaddq_f16(vpaddq_f16(sum[r][0], sum[r][1]), vpaddq_f16(sum[r][2], sum[r][3]));
          const float32x4_t lo = vcvt_f32_f16(vget_low_f16(pairs)), hi = vcvt_high_f32_f16(pairs);
          total[r] = vaddq_f32(total[r], vpaddq_f32(lo, hi));
        }
      }
      for (int r = 0; r < kR; ++r) vst1q_f32(scores + r * kSoftmaxKeys + key, total[r]);
    }
  }

  static void Scores(const __fp16* q, int64_t q_stride, int64_t rows, const uint8_t* k, int64_t row_bytes,
                     int64_t keys, int64_t dim, float* scores) {
    for (; rows >= kRows; rows -= kRows, q += kRows * q_stride, scores += kRows * kSoftmaxKeys)
      ScoreRows<kRows>(q, q_stride, k, row_bytes, keys, dim, scores);
    if (rows == 3) ScoreRows<3>(q, q_stride, k, row_bytes, keys, dim, scores);
    if (rows == 2) ScoreRows<2>(q, q_stride, k, row_bytes, keys, dim, scores);
    if (rows == 1) ScoreRows<1>(q, q_stride, k, row_bytes, keys, dim, scores);
  }
  static void DecodedScores(const __fp16* q, int64_t q_stride, int64_t rows, const float* k, int64_t stride,
                            int64_t keys, int64_t dim, float* scores) {
    Scores(q, q_stride, rows, reinterpret_cast<const uint8_t*>(k), stride * 2, keys, dim, scores);
  }

  template <int kR, int kV>
  static CELER_INLINE void ValueColumns(const __fp16* weights, const uint8_t* const* v, int64_t row_bytes,
                                        int64_t begin, int64_t end, int64_t d, int64_t some, float* acc,
                                        int64_t stride) {
    float16x8_t sum[kR][kV];
    for (int r = 0; r < kR; ++r)
      for (int i = 0; i < kV; ++i) sum[r][i] = vdupq_n_f16(0);
    const auto load = [&](const uint8_t* row, float16x8_t(&part)[kV]) __attribute__((always_inline)) {
      if (kV == 1 && some < kHalfLanes)
        part[0] = LoadHalfEnd(row, some);
      else
        for (int i = 0; i < kV; ++i) part[i] = LoadHalf(row + i * 16);
    };
    for (int64_t key = begin; key < end;) {
      const uint8_t* row = v[key / kSegmentKeys] + key % kSegmentKeys * row_bytes + d * 2;
      float16x8_t part[kV], weight[kR];
      if (key % kHalfLanes != 0 || key + kHalfLanes > end) {
        load(row, part);
        for (int r = 0; r < kR; ++r) {
          weight[r] = vld1q_dup_f16(weights + r * kSoftmaxKeys + key);
          for (int i = 0; i < kV; ++i) sum[r][i] = vfmaq_f16(sum[r][i], weight[r], part[i]);
        }
        ++key;
        continue;
      }
      for (int r = 0; r < kR; ++r) weight[r] = vld1q_f16(weights + r * kSoftmaxKeys + key);
      const auto add = [&](auto lane) __attribute__((always_inline)) {
        load(row + lane * row_bytes, part);
        for (int r = 0; r < kR; ++r)
          for (int i = 0; i < kV; ++i)
            sum[r][i] = FmaLane<decltype(lane)::value>(sum[r][i], part[i], weight[r]);
      };
      add(Constant<0>()), add(Constant<1>()), add(Constant<2>()), add(Constant<3>());
      add(Constant<4>()), add(Constant<5>()), add(Constant<6>()), add(Constant<7>());
      key += kHalfLanes;
    }
    for (int r = 0; r < kR; ++r)
      for (int i = 0; i < kV; ++i) {
        float* to = acc + r * stride + d + i * kHalfLanes;
        vst1q_f32(to, vaddq_f32(vld1q_f32(to), vcvt_f32_f16(vget_low_f16(sum[r][i]))));
        vst1q_f32(to + 4, vaddq_f32(vld1q_f32(to + 4), vcvt_high_f32_f16(sum[r][i])));
      }
  }

  template <int kR>
  static CELER_INLINE void ValueRows(const __fp16* weights, const uint8_t* const* v, int64_t row_bytes,
                                     int64_t begin, int64_t end, int64_t dim, float* acc, int64_t stride) {
    constexpr int kWide = kR == 1 ? 8 : 4;
    int64_t d = 0;
    for (; d + kWide * kHalfLanes <= dim; d += kWide * kHalfLanes)
      ValueColumns<kR, kWide>(weights, v, row_bytes, begin, end, d, kHalfLanes, acc, stride);
    for (; d + 2 * kHalfLanes <= dim; d += 2 * kHalfLanes)
      ValueColumns<kR, 2>(weights, v, row_bytes, begin, end, d, kHalfLanes, acc, stride);
    for (; d < dim; d += kHalfLanes)
      ValueColumns<kR, 1>(weights, v, row_bytes, begin, end, d, dim - d < kHalfLanes ? dim - d : kHalfLanes,
                          acc, stride);
  }

  static void Values(const __fp16* weights, int64_t rows, const uint8_t* const* v, int64_t row_bytes,
                     int64_t begin, int64_t end, int64_t dim, float* acc, int64_t stride) {
    for (; rows >= kRows; rows -= kRows, weights += kRows * kSoftmaxKeys, acc += kRows * stride)
      ValueRows<kRows>(weights, v, row_bytes, begin, end, dim, acc, stride);
    if (rows == 3) ValueRows<3>(weights, v, row_bytes, begin, end, dim, acc, stride);
    if (rows == 2) ValueRows<2>(weights, v, row_bytes, begin, end, dim, acc, stride);
    if (rows == 1) ValueRows<1>(weights, v, row_bytes, begin, end, dim, acc, stride);
  }
  static void DecodedValues(const __fp16* weights, int64_t rows, const uint8_t* const* v, int64_t v_stride,
                            int64_t begin, int64_t end, int64_t dim, float* acc, int64_t stride) {
    Values(weights, rows, v, v_stride * 2, begin, end, dim, acc, stride);
  }
};

template <bool kInt8>
void AttendTileHalf(const AttentionTile& tile) {
  if (tile.group > HalfQuadsTile<kInt8>::kQueries) return HalfLanesTile<kInt8>(tile).Run();
  if (tile.group > 2) return HalfQuadsTile<kInt8>(tile).Run();
  TileRun<HalfKernel<kInt8>>(tile).Run();
}

}  // namespace

void arm::AttendTileFp16(const AttentionTile& tile) {
  if (tile.kind == KvKind::kF16) return AttendTileHalf<false>(tile);
  if (tile.kind == KvKind::kI8) return AttendTileHalf<true>(tile);
  AttendTileFloat(tile);
}

}  // namespace celer
