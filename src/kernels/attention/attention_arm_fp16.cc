// Tiles over f16 and int8 KV in f16 arithmetic: eight products per instruction instead of four, and no
// conversion of keys and values.
//
// Accuracy: sums in f16 are short, 32 products for a score, kSpanKeys for weighted values, and are added up
// in f32 from there on; queries are brought to [0.5, 1) by a power of two, weights are at most 1. A score's
// error is then that of rounding its key to f16, once more; an output's is about 2^-11 of the largest value.
#include "kernels/attention/attention_float.h"

namespace celer {
namespace {

constexpr int64_t kHalfLanes = 8;
constexpr int64_t kChainDims = 64;  // products summed up in f16: kChainDims / kHalfLanes per lane

CELER_INLINE float16x8_t LoadHalf(const uint8_t* p) {
  return vreinterpretq_f16_u8(vld1q_u8(p));
}
CELER_INLINE float16x8_t LoadHalfEnd(const uint8_t* p, int64_t n) {
  uint8_t bytes[16] = {};
  memcpy(bytes, p, static_cast<size_t>(n) * 2);
  return LoadHalf(bytes);
}

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

  // Returns the power of two that has been taken out.
  static float PrepareQuery(const float* q, int64_t dim, int64_t padded, float scale, __fp16* out) {
    constexpr int kL = Simd::kLanes;
    const float32x4_t scales = vdupq_n_f32(scale);
    const auto load = [&](int64_t d) {
      return vmulq_f32(d + kL <= dim ? vld1q_f32(q + d) : LoadSome(q + d, dim - d), scales);
    };
    float32x4_t tops = vdupq_n_f32(0);
    for (int64_t d = 0; d < dim; d += kL) tops = vmaxq_f32(tops, vabsq_f32(load(d)));
    const float top = vmaxvq_f32(tops);
    uint32_t bits;
    memcpy(&bits, &top, sizeof bits);
    const uint32_t exponent = bits >> 23;  // top < 2^(exponent - 126)
    float power = 1, inverse = 1;
    if (exponent > 26 && exponent < 226) {
      bits = (exponent + 1) << 23;
      memcpy(&power, &bits, sizeof power);
      bits = (253 - exponent) << 23;
      memcpy(&inverse, &bits, sizeof inverse);
    }
    memset(out, 0, static_cast<size_t>(padded) * sizeof(__fp16));
    for (int64_t d = 0; d < dim; d += kL) vst1_f16(out + d, vcvt_f16_f32(vmulq_n_f32(load(d), inverse)));
    return power;
  }
  static CELER_INLINE void StoreWeight(__fp16* out, float32x4_t weight) {
    vst1_f16(out, vcvt_f16_f32(weight));
  }

  // int8 with a scale to f16: the half with the bits 0x4800 + u is 8 + u / 128, so with u = value + 128 it is
  // value / 128 + 9. A scale times 128 is the largest magnitude of its row, which f16 would have to hold as
  // well.
  static void Decode(const uint8_t* rows, int64_t row_bytes, const float* scales, int64_t keys, int64_t dim,
                     int64_t padded, float* decoded) {
    auto* out = reinterpret_cast<__fp16*>(decoded);
    const uint8x16_t flip = vdupq_n_u8(0x80), high = vdupq_n_u8(0x48);
    const float16x8_t nine = vdupq_n_f16(9);
    for (int64_t k = 0; k < keys; ++k) {
      const float16x8_t scale = vdupq_n_f16(static_cast<__fp16>(scales[k] * 128));
      for (int64_t d = 0; d < dim; d += 16) {
        uint8_t end[16] = {};
        const uint8_t* from = rows + k * row_bytes + d;
        if (dim - d < 16) {
          memcpy(end, from, static_cast<size_t>(dim - d));
          from = end;
        }
        const uint8x16_t u = veorq_u8(vld1q_u8(from), flip);
        const float16x8_t lo = vsubq_f16(vreinterpretq_f16_u8(vzip1q_u8(u, high)), nine);
        const float16x8_t hi = vsubq_f16(vreinterpretq_f16_u8(vzip2q_u8(u, high)), nine);
        vst1q_f16(out + k * padded + d, vmulq_f16(lo, scale));
        vst1q_f16(out + k * padded + d + 8, vmulq_f16(hi, scale));
      }
    }
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
    for (int64_t key = begin; key < end;) {
      const uint8_t* row = v[key / kSegmentKeys] + key % kSegmentKeys * row_bytes + d * 2;
      const int64_t segment_end = (key / kSegmentKeys + 1) * kSegmentKeys;
      for (const int64_t to = segment_end < end ? segment_end : end; key < to; ++key, row += row_bytes) {
        float16x8_t part[kV];
        if (kV == 1 && some < kHalfLanes)
          part[0] = LoadHalfEnd(row, some);
        else
          for (int i = 0; i < kV; ++i) part[i] = LoadHalf(row + i * 16);
        for (int r = 0; r < kR; ++r) {
          const float16x8_t weight = vld1q_dup_f16(weights + r * kSoftmaxKeys + key);
          for (int i = 0; i < kV; ++i) sum[r][i] = vfmaq_f16(sum[r][i], weight, part[i]);
        }
      }
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

}  // namespace

void arm::AttendTileFp16(const AttentionTile& tile) {
  if (tile.kind == KvKind::kF16) return TileRun<HalfKernel<false>>(tile).Run();
  if (tile.kind == KvKind::kI8) return TileRun<HalfKernel<true>>(tile).Run();
  AttendTileFloat(tile);
}

}  // namespace celer
