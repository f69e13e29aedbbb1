// A tile of grouped queries in f16 arithmetic, a query per lane: an element of a key times the same element
// of eight queries is one instruction, so scores, maxima and sums need nothing across lanes, and a load of a
// key or a value serves the whole group. Worth it from five queries per kv head; see simd.h for the unnamed
// namespace.
//
// Eight lanes belong to one token, so they see the same keys. A lane's result depends on nothing in other
// lanes.
#pragma once

#include "kernels/attention/attention_half.h"
#include "kernels/attention/attention_half_loops.h"

namespace celer {
namespace {

template <bool kInt8>
class HalfLanesTile {
 public:
  explicit HalfLanesTile(const AttentionTile& tile)
      : t_(tile), blocks_((tile.group + kHalfLanes - 1) / kHalfLanes), padded_(PaddedDim(tile.head_dim)) {
    float* p = tile.scratch;
    scores_ = reinterpret_cast<__fp16*>(p), p += kSoftmaxKeys * kHalfLanes / 2;
    decoded_ = reinterpret_cast<__fp16*>(p), p += kSoftmaxKeys * padded_;
    power_ = p, p += t_.tokens * blocks_ * kHalfLanes;
    query_ = reinterpret_cast<__fp16*>(p);
  }

  void Run() {
    for (int64_t t = 0; t < t_.tokens && !t_.same_queries; ++t)
      for (int64_t b = 0; b < blocks_; ++b) PrepareLanes(t, b);
    for (int64_t r = 0; r < t_.tokens * t_.group; ++r) {
      t_.max[r] = -__builtin_inff();
      t_.sum[r] = 0;
    }
    memset(t_.acc, 0, static_cast<size_t>(t_.tokens * t_.group * padded_) * sizeof(float));
    for (int64_t key = t_.key_begin; key < t_.key_end; key += kSoftmaxKeys) Step(key);
  }

 private:
  static constexpr int64_t kSegments = kSoftmaxKeys / kSegmentKeys;
  static constexpr int64_t kTogether = 8;  // keys whose scores are computed together

  // Eight queries of a token, element by element; lanes without a query hold zeros. The place for decoded
  // keys serves for the rows before they are transposed.
  void PrepareLanes(int64_t token, int64_t block) {
    const int64_t lanes = (token * blocks_ + block) * kHalfLanes, first = block * kHalfLanes;
    for (int64_t i = 0; i < kHalfLanes; ++i) {
      __fp16* row = decoded_ + i * padded_;
      power_[lanes + i] = 1;
      if (first + i < t_.group)
        power_[lanes + i] = HalfQuery(t_.q + token * t_.token_stride + (first + i) * t_.head_dim, t_.head_dim,
                                      padded_, t_.scale, row);
      else
        memset(row, 0, static_cast<size_t>(padded_) * sizeof(__fp16));
    }
    __fp16* to = query_ + lanes * padded_;
    for (int64_t d = 0; d < padded_; d += kHalfLanes)
      Transpose8x8(decoded_ + d, padded_, to + d * kHalfLanes);
  }

  // A decode step reads each row once, and had better ask for it early and a few lines at a time: more than
  // the memory system can queue would be dropped. While scores are computed, for the values into L1; while
  // values are summed up, for the next keys; and each for what is used kStepsAhead later into the last level.
  static constexpr int64_t kStepsAhead = 2;
  bool ReadsOnce() const { return t_.tokens <= 2; }
  int64_t RowOffset(int64_t key) const { return RowOf(t_, t_.blocks, key); }
  int64_t FirstKey(int64_t token) const {
    const int64_t position = t_.positions[token];
    return t_.window > 0 && position >= t_.window ? position - t_.window + 1 : 0;
  }

  // The keys of one step of the running softmax.
  void Step(int64_t start) {
    // Positions ascend: the first token sees the earliest keys, the last one the latest.
    const int64_t first_seen = FirstKey(0) > start ? FirstKey(0) - start : 0;
    const int64_t last_seen = t_.positions[t_.tokens - 1] - start;
    if (first_seen >= kSoftmaxKeys || last_seen < 0) return;
    const uint8_t *k[kSegments] = {}, *v[kSegments] = {};
    int64_t stride = t_.row_bytes;
    for (int64_t s = first_seen / kSegmentKeys; s < kSegments && s * kSegmentKeys <= last_seen; ++s) {
      const int64_t offset = RowOffset(start + s * kSegmentKeys);
      k[s] = t_.k + offset;
      v[s] = t_.v + offset;
      if (kInt8) {
        const int64_t left = last_seen + 1 - s * kSegmentKeys,
                      keys = left < kSegmentKeys ? left : kSegmentKeys;
        k[s] = Decoded(t_.k, start + s * kSegmentKeys, keys, decoded_ + s * kSegmentKeys * padded_);
        v[s] = Decoded(t_.v, start + s * kSegmentKeys, keys,
                       decoded_ + (s * kSegmentKeys + kSoftmaxKeys) * padded_);
      }
    }
    if (kInt8) stride = padded_ * 2;
    // int8 rows are decoded before anything else is done, so what is read is a step earlier.
    const uint8_t* const none = reinterpret_cast<const uint8_t*>(scores_);
    Fetch fetch[kSegments];
    for (int64_t s = 0; s < kSegments; ++s) {
      fetch[s] = {none, none, none, none};
      if (!ReadsOnce()) continue;
      const RowsAhead next = LookAhead(t_, start + kSoftmaxKeys + s * kSegmentKeys);
      const RowsAhead later = LookAhead(t_, start + kStepsAhead * kSoftmaxKeys + s * kSegmentKeys);
      const auto use = [](const uint8_t*& to, const uint8_t* from) {
        if (from) to = from;
      };
      use(fetch[s].soon_v, kInt8 ? next.v : v[s]);
      use(fetch[s].later_v, later.v);
      use(fetch[s].soon_k, next.k);
      use(fetch[s].later_k, later.k);
    }
    for (int64_t t = 0; t < t_.tokens; ++t) {
      const int64_t position = t_.positions[t] - start, first = FirstKey(t) - start;
      const int64_t begin = first > 0 ? first : 0,
                    end = position < kSoftmaxKeys ? position + 1 : kSoftmaxKeys;
      if (begin >= end) continue;
      for (int64_t b = 0; b < blocks_; ++b) {
        const int64_t block = t * blocks_ + b;
        Scores(query_ + block * kHalfLanes * padded_, k, stride, begin, end, fetch);
        const int64_t row = t * t_.group + b * kHalfLanes, left = t_.group - b * kHalfLanes;
        const int64_t rows = left < kHalfLanes ? left : kHalfLanes;
        float shrink[kHalfLanes];
        Softmax(power_ + block * kHalfLanes, begin, end, row, rows, shrink);
        Values(v, stride, begin, end, rows, shrink, fetch, t_.acc + row * padded_);
      }
    }
  }

  const uint8_t* Decoded(const uint8_t* base, int64_t key, int64_t keys, __fp16* out) const {
    const int64_t block = BlockOf(t_, key), slot = key - block * t_.block_size;
    const uint8_t* scales =
        base + t_.blocks[block] * t_.block_bytes + t_.scale_offset + slot * int64_t{sizeof(float)};
    DecodeToHalf(base + RowOffset(key), t_.row_bytes, reinterpret_cast<const float*>(scales), keys,
                 t_.head_dim, padded_, out);
    return reinterpret_cast<const uint8_t*>(out);
  }

  // What a segment's work asks the memory for; `none` in Step() where there is nothing.
  struct Fetch {
    const uint8_t *soon_v, *later_v, *soon_k, *later_k;
  };
  static constexpr int64_t kFetchBytes = 512;  // that an inner loop asks for

  // scores_[key][lane] for the keys of [begin, end), and for others of their segments, which do not matter.
  void Scores(const __fp16* query, const uint8_t* const* k, int64_t stride, int64_t begin, int64_t end,
              const Fetch* fetch) {
    const int64_t row_bytes = t_.row_bytes;
    for (int64_t key = begin / kTogether * kTogether; key < end; key += kTogether) {
      const int64_t s = key / kSegmentKeys, at = key % kSegmentKeys;
      const uint8_t* const rows = k[s] + at * stride;
      __fp16* const scores = scores_ + key * kHalfLanes;
      if (t_.head_dim % kScoreDims != 0) {
        ScoresOf(query, rows, stride, scores);
        continue;
      }
      for (int64_t d = 0; d < t_.head_dim; d += kScoreDims) {
        const int64_t done = d / kScoreDims * kFetchBytes;
        const bool more = done < kTogether * row_bytes;
        const uint8_t* soon = more ? fetch[s].soon_v + at * row_bytes + done : rows;
        const uint8_t* later = more ? fetch[s].later_v + at * row_bytes + done : rows;
        if (d == 0)
          ScoresOf8<true>(query, rows, stride, scores, soon, later);
        else
          ScoresOf8<false>(query + d * kHalfLanes, rows + d * 2, stride, scores, soon, later);
      }
    }
  }

  // Sums of 16 products, then of pairs of those, then of the pairs.
  CELER_INLINE void ScoresOf(const __fp16* query, const uint8_t* k, int64_t stride, __fp16* scores) const {
    constexpr int64_t kChainDims = 32;
    const int64_t dim = t_.head_dim;
    for (int64_t chain = 0; chain < dim; chain += kChainDims) {
      float16x8_t even[kTogether], odd[kTogether];
      for (int i = 0; i < kTogether; ++i) even[i] = odd[i] = vdupq_n_f16(0);
      const auto multiply = [&](int64_t d, const float16x8_t(&key)[kTogether])
          __attribute__((always_inline)) {
        const __fp16* q = query + d * kHalfLanes;
        const auto two = [&](auto lane) __attribute__((always_inline)) {
          constexpr int kLane = decltype(lane)::value;
          FmaLanes<kLane>(even, vld1q_f16(q + kLane * kHalfLanes), key);
          FmaLanes<kLane + 1>(odd, vld1q_f16(q + (kLane + 1) * kHalfLanes), key);
        };
        two(Constant<0>()), two(Constant<2>()), two(Constant<4>()), two(Constant<6>());
      };
      const int64_t chain_end = chain + kChainDims < dim ? chain + kChainDims : dim;
      int64_t d = chain;
      if (dim - chain >= kChainDims) {
#pragma GCC unroll 4
        for (int step = 0; step < 4; ++step, d += kHalfLanes) {
          float16x8_t key[kTogether];
          for (int i = 0; i < kTogether; ++i) key[i] = LoadHalf(k + i * stride + d * 2);
          multiply(d, key);
        }
      }
      for (; d + kHalfLanes <= chain_end; d += kHalfLanes) {
        float16x8_t key[kTogether];
        for (int i = 0; i < kTogether; ++i) key[i] = LoadHalf(k + i * stride + d * 2);
        multiply(d, key);
      }
      if (d < chain_end) {
        float16x8_t key[kTogether];
        for (int i = 0; i < kTogether; ++i) key[i] = LoadHalfEnd(k + i * stride + d * 2, dim - d);
        multiply(d, key);
      }
      for (int i = 0; i < kTogether; ++i) {
        float16x8_t sum = vaddq_f16(even[i], odd[i]);
        if (chain > 0) sum = vaddq_f16(sum, vld1q_f16(scores + i * kHalfLanes));
        vst1q_f16(scores + i * kHalfLanes, sum);
      }
    }
  }

  // From scores_ to weights_, in place. All in f16: a difference of scores is off by 2^-11 of itself at most,
  // and the larger it is the less its weight counts. The sum is that of the rounded weights.
  void Softmax(const float* power, int64_t begin, int64_t end, int64_t row, int64_t rows, float* shrink) {
    __fp16* const scores =
        scores_;  // the compiler takes stores of vectors for stores to anything, members too
    float16x8_t tops[4];
    for (int i = 0; i < 4; ++i) tops[i] = vld1q_f16(scores + begin * kHalfLanes);
    int64_t key = begin;
    for (; key + 4 <= end; key += 4)
      for (int i = 0; i < 4; ++i) tops[i] = vmaxq_f16(tops[i], vld1q_f16(scores + (key + i) * kHalfLanes));
    for (; key < end; ++key) tops[0] = vmaxq_f16(tops[0], vld1q_f16(scores + key * kHalfLanes));
    const float16x8_t top = vmaxq_f16(vmaxq_f16(tops[0], tops[1]), vmaxq_f16(tops[2], tops[3]));
    // Maxima are kept in the units of the caller: a power of two apart, so nothing is lost.
    const float32x4_t by[2] = {vld1q_f32(power), vld1q_f32(power + 4)};
    float32x4_t max[2], old[2], sum[2], by_old[2];
    Lanes(t_.max + row, rows, old);
    max[0] = vmaxq_f32(old[0], vmulq_f32(vcvt_f32_f16(vget_low_f16(top)), by[0]));
    max[1] = vmaxq_f32(old[1], vmulq_f32(vcvt_high_f32_f16(top), by[1]));
    StoreLanes(max, rows, t_.max + row);
    // Without any earlier keys there is nothing to shrink; if the maximum has not moved the factor is
    // exactly 1.
    for (int i = 0; i < 2; ++i) by_old[i] = vsubq_f32(old[i], max[i]);
    ExpNonPositive(by_old);
    for (int i = 0; i < 2; ++i) vst1q_f32(shrink + 4 * i, by_old[i]);
    const float16x8_t base =
        vcvt_high_f16_f32(vcvt_f16_f32(vdivq_f32(max[0], by[0])), vdivq_f32(max[1], by[1]));
    const float32x4_t most = vdupq_n_f32(32768);
    const float16x8_t scale = vcvt_high_f16_f32(vcvt_f16_f32(vminq_f32(by[0], most)), vminq_f32(by[1], most));

    sum[0] = sum[1] = vdupq_n_f32(0);
    const auto add = [&](float16x8_t weights) __attribute__((always_inline)) {
      sum[0] = vaddq_f32(sum[0], vcvt_f32_f16(vget_low_f16(weights)));
      sum[1] = vaddq_f32(sum[1], vcvt_high_f32_f16(weights));
    };
    const auto weigh = [&](auto count) __attribute__((always_inline)) {
      constexpr int kN = decltype(count)::value;
      float16x8_t x[kN];
      for (int i = 0; i < kN; ++i) x[i] = vsubq_f16(vld1q_f16(scores + (key + i) * kHalfLanes), base);
      for (int i = 0; i < kN; ++i) x[i] = vmulq_f16(x[i], scale);
      ExpOfHalf(x);
      for (int i = 0; i < kN; ++i) vst1q_f16(scores + (key + i) * kHalfLanes, x[i]);
      if constexpr (kN == 4) add(vaddq_f16(x[0], x[1])), add(vaddq_f16(x[2], x[3]));
      if constexpr (kN == 1) add(x[0]);
    };
    for (key = begin; key + 4 <= end; key += 4) weigh(Constant<4>());
    for (; key < end; ++key) weigh(Constant<1>());
    float32x4_t total[2];
    Lanes(t_.sum + row, rows, total);
    for (int i = 0; i < 2; ++i) total[i] = vfmaq_f32(sum[i], total[i], by_old[i]);
    StoreLanes(total, rows, t_.sum + row);
  }

  static CELER_INLINE void StoreLanes(const float32x4_t (&from)[2], int64_t n, float* to) {
    float lanes[kHalfLanes];
    vst1q_f32(lanes, from[0]);
    vst1q_f32(lanes + 4, from[1]);
    for (int64_t i = 0; i < n; ++i) to[i] = lanes[i];
  }
  static CELER_INLINE void Lanes(const float* from, int64_t n, float32x4_t (&out)[2]) {
    float lanes[kHalfLanes] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = from[i];
    out[0] = vld1q_f32(lanes);
    out[1] = vld1q_f32(lanes + 4);
  }

  // acc = acc * shrink + weighted values of the step's keys.
  void Values(const uint8_t* const* v, int64_t stride, int64_t begin, int64_t end, int64_t rows,
              const float* shrink, const Fetch* fetch, float* acc) const {
    if (rows == kHalfLanes && begin == 0 && end == kSoftmaxKeys && t_.head_dim % kValueColumns == 0)
      return AllValues(v, stride, shrink, fetch, acc);
    switch (rows) {
      case 1:
        return ValueRows<1>(v, stride, begin, end, shrink, acc);
      case 2:
        return ValueRows<2>(v, stride, begin, end, shrink, acc);
      case 3:
        return ValueRows<3>(v, stride, begin, end, shrink, acc);
      case 4:
        return ValueRows<4>(v, stride, begin, end, shrink, acc);
      case 5:
        return ValueRows<5>(v, stride, begin, end, shrink, acc);
      case 6:
        return ValueRows<6>(v, stride, begin, end, shrink, acc);
      case 7:
        return ValueRows<7>(v, stride, begin, end, shrink, acc);
      case 8:
        return ValueRows<8>(v, stride, begin, end, shrink, acc);
    }
  }
  template <int kR>
  void ValueRows(const uint8_t* const* v, int64_t stride, int64_t begin, int64_t end, const float* shrink,
                 float* acc) const {
    int64_t d = 0;
    // Sixteen sums at a time, if possible: with fewer of them, each would wait for its last addition.
    constexpr int kWide = kR <= 2 ? 8 : kR <= 4 ? 4 : 2;
    if constexpr (kWide > 2)
      for (; d + kWide * kHalfLanes <= t_.head_dim; d += kWide * kHalfLanes)
        ValueColumns<kR, kWide>(v, stride, begin, end, d, kHalfLanes, shrink, acc);
    for (; d + 2 * kHalfLanes <= t_.head_dim; d += 2 * kHalfLanes)
      ValueColumns<kR, 2>(v, stride, begin, end, d, kHalfLanes, shrink, acc);
    for (; d < t_.head_dim; d += kHalfLanes) {
      const int64_t left = t_.head_dim - d;
      ValueColumns<kR, 1>(v, stride, begin, end, d, left < kHalfLanes ? left : kHalfLanes, shrink, acc);
    }
  }
  template <int kR, int kV>
  CELER_INLINE void ValueColumns(const uint8_t* const* v, int64_t stride, int64_t begin, int64_t end,
                                 int64_t d, int64_t some, const float* shrink, float* acc) const {
    const int64_t padded = padded_;
    const __fp16* const weights = scores_;
    float16x8_t sum[kR][kV];
    for (int r = 0; r < kR; ++r)
      for (int i = 0; i < kV; ++i) sum[r][i] = vdupq_n_f16(0);
    for (int64_t key = begin; key < end;) {
      const uint8_t* value = v[key / kSegmentKeys] + key % kSegmentKeys * stride + d * 2;
      const int64_t segment_end = (key / kSegmentKeys + 1) * kSegmentKeys;
      for (const int64_t to = segment_end < end ? segment_end : end; key < to; ++key, value += stride) {
        float16x8_t part[kV];
        if (kV == 1 && some < kHalfLanes)
          part[0] = LoadHalfEnd(value, some);
        else
          for (int i = 0; i < kV; ++i) part[i] = LoadHalf(value + i * 16);
        const float16x8_t weight = vld1q_f16(weights + key * kHalfLanes);
        const auto row = [&](auto lane) __attribute__((always_inline)) {
          constexpr int kLane = decltype(lane)::value;
          if constexpr (kLane < kR)
            for (int i = 0; i < kV; ++i) sum[kLane][i] = FmaLane<kLane>(sum[kLane][i], part[i], weight);
        };
        row(Constant<0>()), row(Constant<1>()), row(Constant<2>()), row(Constant<3>());
        row(Constant<4>()), row(Constant<5>()), row(Constant<6>()), row(Constant<7>());
      }
    }
    for (int r = 0; r < kR; ++r)
      for (int i = 0; i < kV; ++i) AddTo(acc + r * padded + d + i * kHalfLanes, sum[r][i], shrink[r]);
  }
  static CELER_INLINE void AddTo(float* to, float16x8_t sum, float shrink) {
    const float32x4_t by = vdupq_n_f32(shrink);
    vst1q_f32(to, vfmaq_f32(vcvt_f32_f16(vget_low_f16(sum)), vld1q_f32(to), by));
    vst1q_f32(to + 4, vfmaq_f32(vcvt_high_f32_f16(sum), vld1q_f32(to + 4), by));
  }

  // The same for a whole step and eight queries.
  static constexpr int64_t kValueColumns = 16;
  void AllValues(const uint8_t* const* v, int64_t stride, const float* shrink, const Fetch* fetch,
                 float* acc) const {
    ValueSegment segments[kSegments + 1];
    for (int64_t s = 0; s < kSegments; ++s) segments[s] = {v[s], fetch[s].soon_k, fetch[s].later_k};
    segments[kSegments] = segments[0];
    const int64_t bytes = kSegmentKeys * t_.row_bytes;  // of a segment, prefetched piece by piece
    for (int64_t d = 0; d < t_.head_dim; d += kValueColumns) {
      alignas(64) __fp16 sums[kHalfLanes][kValueColumns];
      const int64_t ahead = d / kValueColumns * kFetchBytes;
      ValuesOf64(segments, d * 2, ahead < bytes ? ahead : 0, stride, scores_, sums[0]);
      for (int r = 0; r < kHalfLanes; ++r)
        for (int i = 0; i < kValueColumns; i += kHalfLanes)
          AddTo(acc + r * padded_ + d + i, vld1q_f16(sums[r] + i), shrink[r]);
    }
  }

  const AttentionTile& t_;
  const int64_t blocks_, padded_;  // blocks of lanes per token
  __fp16* scores_;                 // [kSoftmaxKeys, kHalfLanes]; after Softmax the weights
  __fp16* decoded_;                // int8: [K and V, kSoftmaxKeys, padded]
  float* power_;                   // [tokens, blocks, kHalfLanes]
  __fp16* query_;                  // [tokens, blocks, padded, kHalfLanes]
};

}  // namespace
}  // namespace celer
