// A tile of up to four queries per kv head in f16 arithmetic, four rows of queries at a time, which may be of
// several tokens; see simd.h for the unnamed namespace. A row's result does not depend on its company.
//
// Elements of a key lie in the lanes while it is multiplied with four queries, and three rounds of pairwise
// additions turn the sums of four keys into two registers of scores, which hold four queries of two keys.
// From there on, nothing is added across lanes: maxima, weights and sums are kept for even and odd keys
// apart, and a weight is an element that multiplies eight columns of a value.
#pragma once

#include "kernels/attention/attention_half.h"
#include "kernels/attention/attention_half_loops.h"
#include "kernels/attention/attention_quad_loops.h"

namespace celer {
namespace {

template <bool kInt8>
class HalfQuadsTile : HalfTile {
 public:
  static constexpr int kQueries = 4;

  explicit HalfQuadsTile(const AttentionTile& tile)
      : HalfTile(tile), rows_(tile.tokens * tile.group), count_((rows_ + kQueries - 1) / kQueries) {
    float* p = tile.scratch;
    scores_ = reinterpret_cast<__fp16*>(p), p += kSoftmaxKeys * kQueries / 2 + 16;
    decoded_ = reinterpret_cast<__fp16*>(p), p += kSoftmaxKeys * padded_;
    quads_ = reinterpret_cast<Quad*>(p), p += count_ * int64_t{sizeof(Quad) / sizeof(float)};
    query_ = reinterpret_cast<__fp16*>(p);
  }

  void Run() {
    for (int64_t i = 0; i < count_; ++i) {
      if (!t_.same_queries) Prepare(i);
      vst1q_f32(quads_[i].sum, vdupq_n_f32(0));
      vst1q_f16(quads_[i].top, vdupq_n_f16(-__builtin_inff()));
    }
    memset(t_.acc, 0, static_cast<size_t>(rows_ * padded_) * sizeof(float));
    for (int64_t key = t_.key_begin; key < t_.key_end; key += kSoftmaxKeys)
      t_.tokens <= 2 ? Step<true>(key) : Step<false>(key);
    for (int64_t row = 0; row < rows_; ++row) {
      const Quad& quad = quads_[row / kQueries];
      const int64_t i = row % kQueries;
      t_.max[row] = static_cast<float>(quad.top[i]) * (quad.power[i] * kLn2);
      t_.sum[row] = quad.sum[i];
    }
  }

 private:
  static constexpr int64_t kTogether = 4;      // keys whose scores are computed together
  static constexpr int64_t kChainDims = 64;    // products summed up in f16: an eighth of them per lane
  static constexpr int64_t kFetchBytes = 512;  // that QuadScores64 asks for

  // Four queries. Scores are in units of power * ln 2: then weights are powers of two. What has eight
  // elements holds those of the four queries twice.
  struct Quad {
    float power[kQueries], sum[kQueries];
    __fp16 top[kHalfLanes];                     // the largest score so far
    __fp16 scale[kHalfLanes], low[kHalfLanes];  // for PowersOf
  };

  void Prepare(int64_t index) {
    Quad& quad = quads_[index];
    __fp16* const row = decoded_;  // which nothing else needs yet
    for (int64_t i = 0; i < kQueries; ++i) {
      quad.power[i] = 1;
      if (const int64_t r = index * kQueries + i; r < rows_)
        quad.power[i] = HalfQuery(t_.q + r / t_.group * t_.token_stride + r % t_.group * t_.head_dim,
                                  t_.head_dim, padded_, t_.scale * (1 / kLn2), row);
      else
        memset(row, 0, static_cast<size_t>(padded_) * sizeof(__fp16));
      __fp16* const to = query_ + index * kQueries * padded_ + i * kHalfLanes;
      for (int64_t d = 0; d < padded_; d += kHalfLanes) vst1q_f16(to + d * kQueries, vld1q_f16(row + d));
      const PowerScale scale(quad.power[i]);
      quad.scale[i] = quad.scale[i + kQueries] = scale.scale;
      quad.low[i] = quad.low[i + kQueries] = scale.low;
    }
  }

  // The keys of one step of the running softmax. kOnce: their rows are read once, and asked for early.
  template <bool kOnce>
  void Step(int64_t start) {
    // Positions ascend: the first token sees the earliest keys, the last one the latest.
    const int64_t first_seen = FirstKey(t_, 0) > start ? FirstKey(t_, 0) - start : 0;
    const int64_t last_seen = t_.positions[t_.tokens - 1] - start;
    if (first_seen >= kSoftmaxKeys || last_seen < 0) return;
    Segment segments[kSegments];
    const int64_t stride = kInt8 ? padded_ * 2 : t_.row_bytes;
    for (int64_t s = first_seen / kSegmentKeys; s < kSegments && s * kSegmentKeys <= last_seen; ++s) {
      const int64_t key = start + s * kSegmentKeys, offset = RowOffset(key);
      Segment& segment = segments[s];
      segment.k = t_.k + offset, segment.v = t_.v + offset;
      if (kOnce) {
        const RowsAhead next = LookAhead(t_, key + kSoftmaxKeys);
        const auto or_here = [&](const uint8_t* rows) { return rows ? rows : segment.k; };
        segment.next_k = or_here(next.k), segment.next_v = or_here(next.v);
        segment.soon_v = kInt8 ? segment.next_v : segment.v;  // int8 is decoded before anything else
      }
      if (!kInt8) continue;
      const int64_t left = last_seen + 1 - s * kSegmentKeys, keys = left < kSegmentKeys ? left : kSegmentKeys;
      segment.k = Decoded(t_.k, key, keys, decoded_ + s * kSegmentKeys * padded_);
      segment.v = Decoded(t_.v, key, keys, decoded_ + (s * kSegmentKeys + kSoftmaxKeys) * padded_);
    }
    for (int64_t i = 0; i < count_; ++i) {
      const int64_t row = i * kQueries, rows = rows_ - row < kQueries ? rows_ - row : kQueries;
      const KeyRange first = Visible(row, start), last = Visible(row + rows - 1, start);
      const KeyRange seen = {first.begin, last.end};  // by any of them
      if (seen.empty()) continue;
      Scores<kOnce>(query_ + row * padded_, segments, stride, seen);
      if (!(first == last)) Hide(row, rows, start);
      float shrink[kQueries];
      Softmax(quads_[i], seen, shrink);
      Values<kOnce>(segments, stride, seen, rows, shrink, t_.acc + row * padded_);
    }
  }

  // The keys of a step that a row sees.
  KeyRange Visible(int64_t row, int64_t start) const {
    return VisibleKeys(t_, row / t_.group, start, kSoftmaxKeys);
  }
  // From each row what others see and it does not.
  void Hide(int64_t row, int64_t rows, int64_t start) {
    for (int64_t i = 0; i < rows; ++i) {
      const KeyRange seen = Visible(row + i, start);
      for (int64_t key = 0; key < kSoftmaxKeys; ++key)
        if (key < seen.begin || key >= seen.end)
          scores_[key * kQueries + i] = static_cast<__fp16>(-__builtin_inff());
    }
  }

  // The rows of a segment, and those that memory is asked for meanwhile: by scores for the same keys' values
  // (into the L1 cache) and the next step's (into the last level), by values for the next step's keys. What
  // is there already where there are no more.
  struct Segment {
    const uint8_t *k = nullptr, *v = nullptr, *soon_v = nullptr, *next_k = nullptr, *next_v = nullptr;
  };

  // scores_[key][query] for the keys that are seen, and for others next to them, which do not matter.
  template <bool kOnce>
  void Scores(const __fp16* query, const Segment* segments, int64_t stride, const KeyRange& seen) {
    for (int64_t key = seen.begin / kTogether * kTogether; key < seen.end; key += kTogether) {
      const Segment& segment = segments[key / kSegmentKeys];
      const int64_t at = key % kSegmentKeys;
      ScoresOf4<kOnce>(query, segment.k + at * stride, stride, segment, at * t_.row_bytes,
                       scores_ + key * kQueries);
    }
  }

  // Asks for as many bytes of values, from `row` on, as the keys have.
  template <bool kOnce>
  CELER_INLINE void ScoresOf4(const __fp16* query, const uint8_t* k, int64_t stride, const Segment& segment,
                              int64_t row, __fp16* scores) const {
    const int64_t dim = t_.head_dim;
    if (dim % kChainDims == 0) {
      const uint8_t *soon = kOnce ? segment.soon_v + row : k, *later = kOnce ? segment.next_v + row : k;
      QuadScores64<true>(query, k, stride, scores, soon, later);
      for (int64_t d = kChainDims; d < dim; d += kChainDims) {
        if (kOnce) soon += kFetchBytes, later += kFetchBytes;
        QuadScores64<false>(query + d * kQueries, k + d * 2, stride, scores, soon, later);
      }
      return;
    }
    for (int64_t chain = 0; chain < dim; chain += kChainDims) {
      float16x8_t sum[kTogether][kQueries];
      for (int j = 0; j < kTogether; ++j)
        for (int i = 0; i < kQueries; ++i) sum[j][i] = vdupq_n_f16(0);
      const auto multiply = [&](int64_t d, const float16x8_t(&key)[kTogether])
          __attribute__((always_inline)) {
        for (int i = 0; i < kQueries; ++i) {
          const float16x8_t q = vld1q_f16(query + d * kQueries + i * kHalfLanes);
          for (int j = 0; j < kTogether; ++j) sum[j][i] = vfmaq_f16(sum[j][i], q, key[j]);
        }
      };
      const int64_t end = chain + kChainDims < dim ? chain + kChainDims : dim;
      int64_t d = chain;
#pragma GCC unroll 4
      for (; d + kHalfLanes <= end; d += kHalfLanes) {
        float16x8_t key[kTogether];
        for (int j = 0; j < kTogether; ++j) key[j] = LoadHalf(k + j * stride + d * 2);
        multiply(d, key);
      }
      if (d < end) {
        float16x8_t key[kTogether];
        for (int j = 0; j < kTogether; ++j) key[j] = LoadHalfEnd(k + j * stride + d * 2, end - d);
        multiply(d, key);
      }
      float16x8_t of_key[kTogether];
      for (int j = 0; j < kTogether; ++j)
        of_key[j] = vpaddq_f16(vpaddq_f16(sum[j][0], sum[j][1]), vpaddq_f16(sum[j][2], sum[j][3]));
      for (int j = 0; j < kTogether; j += 2) {
        float16x8_t two = vpaddq_f16(of_key[j], of_key[j + 1]);
        if (chain > 0) two = vaddq_f16(two, vld1q_f16(scores + j * kQueries));
        vst1q_f16(scores + j * kQueries, two);
      }
    }
  }

  // From scores to weights, in place; keys that no row sees get none. See HalfLanesTile::Softmax.
  void Softmax(Quad& quad, const KeyRange& seen, float* shrink) {
    __fp16* const scores = scores_;
    constexpr int64_t kVectors = kSoftmaxKeys * kQueries / kHalfLanes;
    const float16x4_t none = vdup_n_f16(-__builtin_inff());
    for (int64_t key = 0; key < seen.begin; ++key) vst1_f16(scores + key * kQueries, none);
    for (int64_t key = seen.end; key < kSoftmaxKeys; ++key) vst1_f16(scores + key * kQueries, none);
    const float16x8_t old = vld1q_f16(quad.top);
    float16x8_t tops[4] = {old, old, old, old};
#pragma GCC unroll 4
    for (int64_t i = 0; i < kVectors; i += 4)
      for (int j = 0; j < 4; ++j) tops[j] = vmaxq_f16(tops[j], vld1q_f16(scores + (i + j) * kHalfLanes));
    float16x8_t top = vmaxq_f16(vmaxq_f16(tops[0], tops[1]), vmaxq_f16(tops[2], tops[3]));
    top = vmaxq_f16(top, vextq_f16(top, top, kQueries));
    vst1q_f16(quad.top, top);
    // A row that has not seen any key yet.
    top = vbslq_f16(vceqq_f16(top, vdupq_n_f16(-__builtin_inff())), vdupq_n_f16(0), top);
    // Without any earlier keys there is nothing to shrink; if the maximum has not moved the factor is
    // exactly 1.
    float32x4_t by[1] = {vsubq_f32(vcvt_f32_f16(vget_low_f16(old)), vcvt_f32_f16(vget_low_f16(top)))};
    by[0] = vmulq_f32(by[0], vmulq_n_f32(vld1q_f32(quad.power), kLn2));
    ExpNonPositive(by);
    float32x4_t sum[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    PowersOf<kVectors>(scores, top, vld1q_f16(quad.low), vld1q_f16(quad.scale), sum);
    vst1q_f32(shrink, by[0]);
    vst1q_f32(quad.sum, vfmaq_f32(vaddq_f32(sum[0], sum[1]), vld1q_f32(quad.sum), by[0]));
  }

  // acc = acc * shrink + weighted values of the step's keys.
  template <bool kOnce>
  void Values(const Segment* segments, int64_t stride, const KeyRange& seen, int64_t rows,
              const float* shrink, float* acc) const {
    constexpr int64_t kWide = 4 * kHalfLanes;
    int64_t d = 0;
    if (seen.begin == 0 && seen.end == kSoftmaxKeys) {
      QuadSegment all[kSegments + 1];
      for (int64_t i = 0; i < kSegments; ++i)
        all[i] = {segments[i].v, kOnce ? segments[i].next_k : segments[i].v};
      all[kSegments] = all[0];
      for (; d + kWide <= t_.head_dim; d += kWide) {
        alignas(16) __fp16 sums[kQueries][kWide];
        QuadValues64(all, d * 2, kOnce ? d * (kInt8 ? 1 : 2) : 0, stride, kOnce ? t_.row_bytes : 0, scores_,
                     sums[0]);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < kWide; i += kHalfLanes)
            JoinHalf(acc + r * padded_ + d + i, vld1q_f16(sums[r] + i), shrink[r]);
      }
    }
    for (; d + kWide <= t_.head_dim; d += kWide)
      ValueColumns<4>(segments, stride, seen, d, kHalfLanes, rows, shrink, acc);
    for (; d < t_.head_dim; d += kHalfLanes) {
      const int64_t left = t_.head_dim - d;
      ValueColumns<1>(segments, stride, seen, d, left < kHalfLanes ? left : kHalfLanes, rows, shrink, acc);
    }
  }
  template <int kV>
  CELER_INLINE void ValueColumns(const Segment* segments, int64_t stride, const KeyRange& seen, int64_t d,
                                 int64_t some, int64_t rows, const float* shrink, float* acc) const {
    const __fp16* const weights = scores_;
    float16x8_t sum[kQueries][kV];
    for (int r = 0; r < kQueries; ++r)
      for (int i = 0; i < kV; ++i) sum[r][i] = vdupq_n_f16(0);
    const auto add = [&](auto lane, float16x8_t weight, const uint8_t* value) __attribute__((always_inline)) {
      constexpr int kLane = decltype(lane)::value;
      float16x8_t part[kV];
      if (kV == 1 && some < kHalfLanes)
        part[0] = LoadHalfEnd(value, some);
      else
        for (int i = 0; i < kV; ++i) part[i] = LoadHalf(value + i * 16);
      for (int i = 0; i < kV; ++i) sum[0][i] = FmaLane<kLane>(sum[0][i], part[i], weight);
      for (int i = 0; i < kV; ++i) sum[1][i] = FmaLane<kLane + 1>(sum[1][i], part[i], weight);
      for (int i = 0; i < kV; ++i) sum[2][i] = FmaLane<kLane + 2>(sum[2][i], part[i], weight);
      for (int i = 0; i < kV; ++i) sum[3][i] = FmaLane<kLane + 3>(sum[3][i], part[i], weight);
    };
    for (int64_t key = seen.begin; key < seen.end;) {
      const Segment& segment = segments[key / kSegmentKeys];
      const int64_t segment_end = (key / kSegmentKeys + 1) * kSegmentKeys,
                    to = segment_end < seen.end ? segment_end : seen.end, at = key % kSegmentKeys;
      const uint8_t* value = segment.v + at * stride + d * 2;
      const auto one = [&] {
        add(Constant<0>(), vcombine_f16(vld1_f16(weights + key * kQueries), vdup_n_f16(0)), value);
        ++key, value += stride;
      };
      if (key % 2 != 0) one();
      for (; key + 2 <= to; key += 2, value += 2 * stride) {
        const float16x8_t weight = vld1q_f16(weights + key * kQueries);
        add(Constant<0>(), weight, value);
        add(Constant<kQueries>(), weight, value + stride);
      }
      if (key < to) one();
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int i = 0; i < kV; ++i) JoinHalf(acc + r * padded_ + d + i * kHalfLanes, sum[r][i], shrink[r]);
  }

  const int64_t rows_, count_;  // of queries, and of fours of them
  __fp16* scores_;              // [kSoftmaxKeys, kQueries]; after Softmax the weights
  __fp16* decoded_;             // int8: [K and V, kSoftmaxKeys, padded]
  Quad* quads_;                 // [count]
  __fp16* query_;               // [count, padded / kHalfLanes, kQueries, kHalfLanes]
};

}  // namespace
}  // namespace celer
