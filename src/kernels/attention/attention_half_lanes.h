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
class HalfLanesTile : HalfTile {
 public:
  explicit HalfLanesTile(const AttentionTile& tile)
      : HalfTile(tile), blocks_((tile.group + kHalfLanes - 1) / kHalfLanes) {
    float* p = tile.scratch;
    scores_ = reinterpret_cast<__fp16*>(p), p += kSoftmaxKeys * kHalfLanes / 2;
    decoded_ = reinterpret_cast<__fp16*>(p), p += kSoftmaxKeys * padded_;
    lanes_ = reinterpret_cast<Lanes*>(p), p += t_.tokens * blocks_ * int64_t{sizeof(Lanes) / sizeof(float)};
    query_ = reinterpret_cast<__fp16*>(p);
  }

  void Run() {
    for (int64_t t = 0; t < t_.tokens && !t_.same_queries; ++t)
      for (int64_t b = 0; b < blocks_; ++b) PrepareLanes(t, b);
    for (int64_t block = 0; block < t_.tokens * blocks_; ++block) {
      Lanes& lanes = lanes_[block];
      vst1q_f32(lanes.sum, vdupq_n_f32(0));
      vst1q_f32(lanes.sum + 4, vdupq_n_f32(0));
      vst1q_f16(lanes.top, vdupq_n_f16(-__builtin_inff()));
    }
    memset(t_.acc, 0, static_cast<size_t>(t_.tokens * t_.group * padded_) * sizeof(float));
    for (int64_t key = t_.key_begin; key < t_.key_end; key += kSoftmaxKeys) Step(key);
    JoinPending();
    for (int64_t t = 0; t < t_.tokens; ++t)
      for (int64_t g = 0; g < t_.group; ++g) {
        const Lanes& lanes = lanes_[t * blocks_ + g / kHalfLanes];
        const int64_t i = g % kHalfLanes;
        t_.max[t * t_.group + g] = static_cast<float>(lanes.top[i]) * (lanes.power[i] * kLn2);
        t_.sum[t * t_.group + g] = lanes.sum[i];
      }
  }

 private:
  static constexpr int64_t kTogether = 8;  // keys whose scores are computed together

  // Eight queries of a token. Scores are in units of power * ln 2: then weights are powers of two.
  struct Lanes {
    float power[kHalfLanes], sum[kHalfLanes];
    __fp16 top[kHalfLanes];                     // the largest score so far
    __fp16 scale[kHalfLanes], low[kHalfLanes];  // for PowersOf
  };

  // Eight queries of a token, element by element; lanes without a query hold zeros. The place for decoded
  // keys serves for the rows before they are transposed.
  void PrepareLanes(int64_t token, int64_t block) {
    const int64_t at = token * blocks_ + block, first = block * kHalfLanes;
    Lanes& lanes = lanes_[at];
    for (int64_t i = 0; i < kHalfLanes; ++i) {
      __fp16* row = decoded_ + i * padded_;
      lanes.power[i] = 1;
      if (first + i < t_.group)
        lanes.power[i] = HalfQuery(t_.q + token * t_.token_stride + (first + i) * t_.head_dim, t_.head_dim,
                                   padded_, t_.scale * (1 / kLn2), row);
      else
        memset(row, 0, static_cast<size_t>(padded_) * sizeof(__fp16));
      const PowerScale scale(lanes.power[i]);
      lanes.scale[i] = scale.scale;
      lanes.low[i] = scale.low;
    }
    __fp16* to = query_ + at * kHalfLanes * padded_;
    for (int64_t d = 0; d < padded_; d += kHalfLanes)
      Transpose8x8(decoded_ + d, padded_, to + d * kHalfLanes);
  }

  // A decode step reads each row once, and had better ask for it early and a few lines at a time: more than
  // the memory system can queue would be dropped. While scores are computed, for the values into L1; while
  // values are summed up, for the next keys; and each for what is used kStepsAhead later into the last level.
  static constexpr int64_t kStepsAhead = 2;
  bool ReadsOnce() const { return t_.tokens <= 2; }

  // The keys of one step of the running softmax.
  void Step(int64_t start) {
    // Positions ascend: the first token sees the earliest keys, the last one the latest.
    const int64_t first_seen = FirstKey(t_, 0) > start ? FirstKey(t_, 0) - start : 0;
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
      const int64_t position = t_.positions[t] - start, first = FirstKey(t_, t) - start;
      const int64_t begin = first > 0 ? first : 0,
                    end = position < kSoftmaxKeys ? position + 1 : kSoftmaxKeys;
      if (begin >= end) continue;
      for (int64_t b = 0; b < blocks_; ++b) {
        const int64_t block = t * blocks_ + b;
        Scores(query_ + block * kHalfLanes * padded_, k, stride, begin, end, fetch);
        const int64_t row = t * t_.group + b * kHalfLanes, left = t_.group - b * kHalfLanes;
        const int64_t rows = left < kHalfLanes ? left : kHalfLanes;
        float* const shrink = shrink_[flip_ ^= 1];
        Softmax(lanes_[block], begin, end, shrink);
        Values(v, stride, begin, end, rows, shrink, fetch, t_.acc + row * padded_);
      }
    }
  }

  // What a segment's work asks the memory for; `none` in Step() where there is nothing.
  struct Fetch {
    const uint8_t *soon_v, *later_v, *soon_k, *later_k;
  };
  static constexpr int64_t kFetchBytes = 512;  // that an inner loop asks for

  // scores_[key][lane] for the keys of [begin, end), and for others of their segments, which do not matter.
  void Scores(const __fp16* query, const uint8_t* const* k, int64_t stride, int64_t begin, int64_t end,
              const Fetch* fetch) {
    const int64_t row_bytes = t_.row_bytes, dim = t_.head_dim;
    for (int64_t key = begin / kTogether * kTogether; key < end;
         key = (key / kSegmentKeys + 1) * kSegmentKeys) {
      const int64_t s = key / kSegmentKeys, at = key % kSegmentKeys;
      const int64_t last = (s + 1) * kSegmentKeys < end ? (s + 1) * kSegmentKeys : end;
      const int64_t groups = (last - key + kTogether - 1) / kTogether;
      const uint8_t* const rows = k[s] + at * stride;
      const uint8_t *const soon = fetch[s].soon_v + at * row_bytes, *const later =
                                                                        fetch[s].later_v + at * row_bytes;
      __fp16* const scores = scores_ + key * kHalfLanes;
      if (dim % 32 != 0) {
        for (int64_t g = 0; g < groups; ++g)
          ScoresOf(query, rows + g * kTogether * stride, stride, scores + g * kTogether * kHalfLanes);
      } else if (dim == 64) {
        ScoresOf8<64, true>(query, rows, stride, groups, scores, soon, later);
      } else {
        ScoresOf8<32, true>(query, rows, stride, groups, scores, soon, later);
        for (int64_t d = 32; d < dim; d += 32) {
          const int64_t done = d / 32 * groups * 512;  // bytes that were asked for
          const bool more = done < groups * kTogether * row_bytes;
          ScoresOf8<32, false>(query + d * kHalfLanes, rows + d * 2, stride, groups, scores,
                               more ? soon + done : rows, more ? later + done : rows);
        }
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

  // From scores to weights, in place; keys outside [begin, end) get none. All in f16: a difference of scores
  // is off by 2^-11 of itself at most, and the larger it is the less its weight counts. The sum is that of
  // the rounded weights.
  void Softmax(Lanes& lanes, int64_t begin, int64_t end, float* shrink) {
    __fp16* const scores =
        scores_;  // the compiler takes stores of vectors for stores to anything, members too
    const float16x8_t none = vdupq_n_f16(-__builtin_inff());
    for (int64_t key = 0; key < begin; ++key) vst1q_f16(scores + key * kHalfLanes, none);
    for (int64_t key = end; key < kSoftmaxKeys; ++key) vst1q_f16(scores + key * kHalfLanes, none);
    const float16x8_t old = vld1q_f16(lanes.top);
    float16x8_t tops[4] = {old, none, none, none};
#pragma GCC unroll 4
    for (int64_t key = 0; key < kSoftmaxKeys; key += 4)
      for (int i = 0; i < 4; ++i) tops[i] = vmaxq_f16(tops[i], vld1q_f16(scores + (key + i) * kHalfLanes));
    const float16x8_t top = vmaxq_f16(vmaxq_f16(tops[0], tops[1]), vmaxq_f16(tops[2], tops[3]));
    vst1q_f16(lanes.top, top);
    // Without any earlier keys there is nothing to shrink; if the maximum has not moved the factor is
    // exactly 1.
    float32x4_t by[2] = {vsubq_f32(vcvt_f32_f16(vget_low_f16(old)), vcvt_f32_f16(vget_low_f16(top))),
                         vsubq_f32(vcvt_high_f32_f16(old), vcvt_high_f32_f16(top))};
    for (int i = 0; i < 2; ++i) by[i] = vmulq_f32(by[i], vmulq_n_f32(vld1q_f32(lanes.power + 4 * i), kLn2));
    ExpNonPositive(by);
    float32x4_t sum[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    PowersOf<kSoftmaxKeys>(scores, top, vld1q_f16(lanes.low), vld1q_f16(lanes.scale), sum);
    for (int i = 0; i < 2; ++i) {
      vst1q_f32(shrink + 4 * i, by[i]);
      vst1q_f32(lanes.sum + 4 * i, vfmaq_f32(sum[i], vld1q_f32(lanes.sum + 4 * i), by[i]));
    }
  }

  // acc = acc * shrink + weighted values of the step's keys.
  void Values(const uint8_t* const* v, int64_t stride, int64_t begin, int64_t end, int64_t rows,
              const float* shrink, const Fetch* fetch, float* acc) {
    if (rows == kHalfLanes && begin == 0 && end == kSoftmaxKeys && t_.head_dim % kValueColumns == 0)
      return AllValues(v, stride, shrink, fetch, acc);
    JoinPending();
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
      for (int i = 0; i < kV; ++i) JoinHalf(acc + r * padded + d + i * kHalfLanes, sum[r][i], shrink[r]);
  }

  // The same for a whole step and eight queries. The last columns' sums are left for the next call.
  static constexpr int64_t kValueColumns = 16;
  void AllValues(const uint8_t* const* v, int64_t stride, const float* shrink, const Fetch* fetch,
                 float* acc) {
    ValueSegment segments[kSegments + 1];
    for (int64_t s = 0; s < kSegments; ++s) segments[s] = {v[s], fetch[s].soon_k, fetch[s].later_k};
    segments[kSegments] = segments[0];
    const int64_t bytes = kSegmentKeys * t_.row_bytes;  // of a segment, prefetched piece by piece
    for (int64_t d = 0; d < t_.head_dim; d += kValueColumns) {
      const int64_t ahead = d / kValueColumns * kFetchBytes;
      if (!pending_.acc) {  // nothing yet: add nothing to what is to come
        static constexpr float kOnes[kHalfLanes] = {1, 1, 1, 1, 1, 1, 1, 1};
        memset(sums_[1], 0, sizeof sums_[1]);
        pending_ = {sums_[1], kOnes, acc};
      }
      __fp16* const sums = pending_.sums == sums_[0] ? sums_[1] : sums_[0];
      ValuesOf64(segments, d * 2, ahead < bytes ? ahead : 0, stride, scores_, sums, pending_.sums,
                 pending_.shrink, pending_.acc, padded_ * int64_t{sizeof(float)});
      pending_ = {sums, shrink, acc + d};
    }
  }
  void JoinPending() {
    if (!pending_.acc) return;
    for (int r = 0; r < kHalfLanes; ++r)
      for (int i = 0; i < kValueColumns; i += kHalfLanes)
        JoinHalf(pending_.acc + r * padded_ + i, vld1q_f16(pending_.sums + r * kValueColumns + i),
                 pending_.shrink[r]);
    pending_.acc = nullptr;
  }

  const int64_t blocks_;  // of lanes per token
  __fp16* scores_;        // [kSoftmaxKeys, kHalfLanes]; after Softmax the weights
  __fp16* decoded_;       // int8: [K and V, kSoftmaxKeys, padded]
  Lanes* lanes_;          // [tokens, blocks]
  __fp16* query_;         // [tokens, blocks, padded, kHalfLanes]
  // Sums that have not joined their total yet, of eight rows from acc on, if there is one.
  struct {
    __fp16* sums = nullptr;
    const float* shrink = nullptr;
    float* acc = nullptr;
  } pending_;
  alignas(64) __fp16 sums_[2][kHalfLanes * 16];
  float shrink_[2][kHalfLanes];  // of the last two steps
  int flip_ = 0;
};

}  // namespace
}  // namespace celer
