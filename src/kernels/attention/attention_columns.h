// A tile in f16 arithmetic with a query per lane, whatever token it belongs to: an element of a key times the
// same element of all queries is one instruction with a broadcast operand, so nothing is ever added across
// lanes. For instruction sets with wide vectors of f16; a type H names one width of them
// (attention_x86_avx512fp16.cc). See simd.h for the unnamed namespace.
//
// A lane's arithmetic is the same in every width and depends on no other lane: keys that a lane does not see
// get the weight zero. Scores are sums of 16 products, of pairs of those, and of the pairs; weighted values
// are summed up over kSoftmaxKeys keys, and in f32 from there on. Queries are brought to [0.5, 1) by a power
// of two, weights are at most 1: the error is that of one more rounding of keys and values to f16.
#pragma once

#include "kernels/attention/attention_tile.h"
#include "kernels/simd.h"

namespace celer {
namespace {

// e^x for x <= 0, all in f16: about one unit in the last place, and right down to the smallest number.
template <class H, int kN>
CELER_INLINE void ExpOfHalf(typename H::V (&x)[kN]) {
  using V = typename H::V;
  const V magic = H::Set(1024 + 512 + 25);
  const float ln2_high = 0.693359375f;  // 11 bits
  V t[kN], p[kN];
  for (int i = 0; i < kN; ++i) x[i] = H::Max(x[i], H::Set(-17.32f));  // 2^-25 becomes 0
  // x = n ln 2 + r, |r| <= ln 2 / 2. The sum is rounded to an integer, and n + 25 stays in its low bits.
  for (int i = 0; i < kN; ++i) t[i] = H::Fma(x[i], H::Set(1.44269504f), magic);
  for (int i = 0; i < kN; ++i) p[i] = H::Sub(t[i], magic);
  for (int i = 0; i < kN; ++i) x[i] = H::Fnma(p[i], H::Set(ln2_high), x[i]);
  for (int i = 0; i < kN; ++i) x[i] = H::Fnma(p[i], H::Set(0.693147181f - ln2_high), x[i]);
  // e^r / 1024 interpolated at the four Chebyshev nodes, off by 1e-4 of itself.
  constexpr float kUnit = 1.0f / 1024;
  for (int i = 0; i < kN; ++i) p[i] = H::Fma(x[i], H::Set(0.16767012f * kUnit), H::Set(0.50502228f * kUnit));
  for (int i = 0; i < kN; ++i) p[i] = H::Fma(x[i], p[i], H::Set(0.99998493f * kUnit));
  for (int i = 0; i < kN; ++i) p[i] = H::Fma(x[i], p[i], H::Set(0.99992456f * kUnit));
  // Times 2^(n + 10), which is a normal number for n > -25: the product rounds once where it is subnormal.
  for (int i = 0; i < kN; ++i) x[i] = H::Mul(p[i], H::PowerFromLowBits(t[i]));
}

constexpr int64_t kMaxLanes = 32;  // of any H

// H: the vector of queries. kFew: one block of lanes at most, so a vector of values (Wide, or Narrow for what
// is left) times a broadcast weight fills more lanes than queries would; the sums of products are the same
// either way.
template <class H, bool kInt8, bool kFew>
class ColumnsTile {
  using V = typename H::V;
  using Half = typename H::Half;
  using S = Simd;
  static constexpr int64_t kLanes = H::kLanes;

 public:
  explicit ColumnsTile(const AttentionTile& tile)
      : t_(tile),
        rows_(tile.tokens * tile.group),
        blocks_((rows_ + kLanes - 1) / kLanes),
        padded_(PaddedDim(tile.head_dim)) {
    const int64_t lanes = blocks_ * kLanes;
    float* p = tile.scratch;
    acc_ = p, p += lanes * padded_;
    query_ = reinterpret_cast<Half*>(p), p += lanes * padded_ / 2;
    scores_ = reinterpret_cast<Half*>(p), p += kSoftmaxKeys * kLanes / 2;
    decoded_ = reinterpret_cast<Half*>(p), p += kSoftmaxKeys * padded_;
    power_ = p, p += lanes;
    sum_ = p, p += lanes;
    max_ = reinterpret_cast<Half*>(p), p += lanes / 2;
    scale_ = reinterpret_cast<Half*>(p), p += lanes / 2;
    first_ = reinterpret_cast<int32_t*>(p), p += lanes;
    last_ = reinterpret_cast<int32_t*>(p);
    if (kFew) acc_ = tile.acc;
  }

  void Run() {
    memset(acc_, 0, static_cast<size_t>((kFew ? rows_ : blocks_ * kLanes) * padded_) * sizeof(float));
    for (int64_t lane = 0; lane < blocks_ * kLanes; lane += 8) PrepareLanes(lane);
    for (int64_t key = t_.key_begin; key < t_.key_end; key += kSoftmaxKeys) Step(key);
    for (int64_t r = 0; r < rows_; ++r) {
      t_.sum[r] = sum_[r];
      t_.max[r] = sum_[r] == 0 ? -__builtin_inff() : static_cast<float>(max_[r]) * power_[r];
    }
    if (kFew) return;
    for (int64_t r = 0; r < rows_; r += 4) {
      const float* from = acc_ + r / kLanes * kLanes * padded_ + r % kLanes;
      const int64_t rows = rows_ - r < 4 ? rows_ - r : 4;
      for (int64_t d = 0; d < padded_; d += 4)
        H::Transpose4x4(from + d * kLanes, kLanes, t_.acc + r * padded_ + d, padded_, rows);
    }
  }

 private:
  static constexpr int64_t kSegments = kSoftmaxKeys / kSegmentKeys;

  // Lanes behind the last row repeat that row's query; nobody reads their results.
  void PrepareLanes(int64_t lane) {
    alignas(64) Half rows[8 * 16];
    float inverse[8];
    const float* q[8];
    for (int64_t i = 0; i < 8; ++i) {
      const int64_t row = lane + i < rows_ ? lane + i : rows_ - 1, token = row / t_.group;
      q[i] = t_.q + token * t_.token_stride + row % t_.group * t_.head_dim;
      inverse[i] = PrepareLane(lane + i, q[i], t_.positions[token]);
    }
    Half* out = query_ + lane / kLanes * kLanes * padded_ + lane % kLanes;
    for (int64_t d = 0; d < padded_; d += 16) {
      const int64_t some = t_.head_dim - d < 16 ? t_.head_dim - d : 16;
      for (int64_t i = 0; i < 8; ++i) H::Convert16(q[i] + d, some, t_.scale, inverse[i], rows + i * 16);
      H::Transpose8x8(rows, 16, out + d * kLanes, kLanes);
      H::Transpose8x8(rows + 8, 16, out + (d + 8) * kLanes, kLanes);
    }
  }
  // Returns what the scaled query is to be multiplied with.
  float PrepareLane(int64_t lane, const float* q, int64_t position) {
    S::F tops = S::Set(0);
    int64_t d = 0;
    for (; d + S::kLanes <= t_.head_dim; d += S::kLanes) tops = S::Max(tops, S::Abs(S::Load(q + d)));
    if (d < t_.head_dim) tops = S::Max(tops, S::Abs(LoadSome(q + d, t_.head_dim - d)));
    const float top = S::MaxOf(tops) * __builtin_fabsf(t_.scale);
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
    power_[lane] = power;
    scale_[lane] = static_cast<Half>(power < 32768.0f ? power : 32768.0f);
    max_[lane] = static_cast<Half>(-__builtin_inff());
    sum_[lane] = 0;
    last_[lane] = static_cast<int32_t>(position);
    first_[lane] =
        static_cast<int32_t>(t_.window > 0 && position >= t_.window ? position - t_.window + 1 : 0);
    return inverse;
  }

  int64_t BlockOffset(int64_t key) const { return t_.blocks[key / t_.block_size] * t_.block_bytes; }
  int64_t RowOffset(int64_t key) const { return BlockOffset(key) + key % t_.block_size * t_.row_bytes; }
  // A decode step reads each row once, and had better ask for it early.
  bool ReadsOnce() const { return rows_ <= 16; }

  // The keys of one step of the running softmax. Positions ascend, and with them what is seen.
  void Step(int64_t start) {
    const int64_t first_seen = first_[0] > start ? first_[0] - start : 0,
                  last_seen = last_[rows_ - 1] - start;
    if (first_seen >= kSoftmaxKeys || last_seen < 0) return;
    const uint8_t *k[kSegments] = {}, *v[kSegments] = {};
    for (int64_t s = first_seen / kSegmentKeys; s < kSegments && s * kSegmentKeys <= last_seen; ++s) {
      const int64_t key = start + s * kSegmentKeys, offset = RowOffset(key);
      k[s] = t_.k + offset;
      v[s] = t_.v + offset;
      if (ReadsOnce()) {
        const RowsAhead ahead = LookAhead(t_, key + kSoftmaxKeys);
        for (int64_t i = 0; ahead.k && i < kSegmentKeys * t_.row_bytes; i += 64) {
          __builtin_prefetch(ahead.k + i, 0, 2);
          __builtin_prefetch(ahead.v + i, 0, 2);
        }
      }
      if (kInt8) {
        const int64_t left = last_seen + 1 - s * kSegmentKeys,
                      keys = left < kSegmentKeys ? left : kSegmentKeys;
        k[s] = Decoded(t_.k, key, keys, decoded_ + s * kSegmentKeys * padded_);
        v[s] = Decoded(t_.v, key, keys, decoded_ + (s * kSegmentKeys + kSoftmaxKeys) * padded_);
      }
    }
    const int64_t stride = kInt8 ? padded_ * 2 : t_.row_bytes;
    for (int64_t b = 0; b < blocks_; ++b) {
      const KeyRange seen = Seen(b, start);
      if (seen.begin < seen.end) Attend(b, start, seen, k, v, stride);
    }
  }

  struct KeyRange {
    int64_t begin, end;  // relative to the start of a step
  };
  // What any lane of a block sees.
  KeyRange Seen(int64_t block, int64_t start) const {
    const int64_t first = first_[block * kLanes] - start, last = last_[(block + 1) * kLanes - 1] - start;
    return {first > 0 ? first : 0, last < kSoftmaxKeys ? last + 1 : kSoftmaxKeys};
  }

  // One block of lanes at a time: a product whose operand is broadcast by the load itself runs at the full
  // rate, one that shares a broadcast with a second block's at three quarters of it.
  void Attend(int64_t block, int64_t start, KeyRange keys, const uint8_t* const* k, const uint8_t* const* v,
              int64_t stride) {
    constexpr int64_t kTogether = 8;  // keys whose scores are computed together
    for (int64_t key = keys.begin / kTogether * kTogether; key < keys.end; key += kTogether)
      ScoresOf<kTogether>(query_ + block * kLanes * padded_,
                          k[key / kSegmentKeys] + key % kSegmentKeys * stride, stride,
                          scores_ + key * kLanes);
    alignas(64) float shrink[kMaxLanes];
    const int64_t lane = block * kLanes;
    if (first_[lane + kLanes - 1] <= start && last_[lane] >= start + kSoftmaxKeys - 1)
      Softmax<false>(lane, start, 0, kSoftmaxKeys, shrink);
    else
      Softmax<true>(lane, start, keys.begin / 4 * 4, (keys.end + 3) / 4 * 4, shrink);
    if constexpr (kFew)
      ValuesByDims(v, stride, keys, shrink);
    else
      Values(v, stride, keys, shrink, acc_ + block * kLanes * padded_);
  }

  const uint8_t* Decoded(const uint8_t* base, int64_t key, int64_t keys, Half* out) const {
    const uint8_t* rows = base + RowOffset(key);
    const uint8_t* scales = base + BlockOffset(key) + t_.scale_offset + key % t_.block_size * sizeof(float);
    for (int64_t i = 0; i < keys; ++i) {
      float scale;
      memcpy(&scale, scales + i * sizeof(float), sizeof scale);
      const auto* row = reinterpret_cast<const int8_t*>(rows + i * t_.row_bytes);
      // A scale times 128 is the largest magnitude of its row, which f16 would have to hold as well.
      const auto largest = static_cast<Half>(scale * 128);
      for (int64_t d = 0; d < t_.head_dim; ++d)
        out[i * padded_ + d] =
            static_cast<Half>(static_cast<Half>(row[d]) * static_cast<Half>(0.0078125f)) * largest;
    }
    return reinterpret_cast<const uint8_t*>(out);
  }

  // scores[key][lane] for kN keys from k on; those that nobody sees do not matter.
  template <int kN>
  CELER_INLINE void ScoresOf(const Half* query, const uint8_t* k, int64_t stride, Half* scores) const {
    constexpr int64_t kChainDims = 32;
    for (int64_t chain = 0; chain < t_.head_dim; chain += kChainDims) {
      V even[1][kN], odd[1][kN];
      for (int i = 0; i < kN; ++i) even[0][i] = odd[0][i] = H::Set(0);
      const int64_t end = chain + kChainDims < t_.head_dim ? chain + kChainDims : t_.head_dim;
      int64_t d = chain;
      for (const uint8_t* at = k + d * 2; d < end; d += 2, at += 4) {
        // Hidden from the compiler, which would keep a pointer per key, some of them in memory: loads of
        // elements already take all that the ports for loads can do.
        asm("" : "+r"(at));
        Multiply<kN>(query + d * kLanes, at, stride, even);
        if (d + 1 < end) Multiply<kN>(query + (d + 1) * kLanes, at + 2, stride, odd);
      }
      for (int i = 0; i < kN; ++i) {
        Half* out = scores + i * kLanes;
        V sum = H::Add(even[0][i], odd[0][i]);
        if (chain > 0) sum = H::Add(sum, H::Load(out));
        H::Store(out, sum);
      }
    }
  }
  template <int kN>
  static CELER_INLINE void Multiply(const Half* query, const uint8_t* k, int64_t stride, V (&sum)[1][kN]) {
    const V q[1] = {H::Load(query)};
    for (int i = 0; i < kN; ++i) H::template FmaElement<1, kN>(q, k + i * stride, sum, i);
  }

  // From scores to weights, in place. A difference of scores is off by 2^-11 of itself at most, and the
  // larger it is the less its weight counts. The sum is that of the rounded weights.
  template <bool kMasked>
  void Softmax(int64_t lane, int64_t start, int64_t begin, int64_t end, float* shrink) {
    Half* const scores = scores_;
    V top = H::Set(-__builtin_inff());
    for (int64_t key = begin; key < end; ++key) {
      V score = H::Load(scores + key * kLanes);
      if (kMasked) {
        score = H::IfWithin(first_ + lane, last_ + lane, static_cast<int32_t>(start + key), score);
        H::Store(scores + key * kLanes, score);
      }
      top = H::Max(top, score);
    }
    const V old = H::Load(max_ + lane), max = H::Max(old, top), scale = H::Load(scale_ + lane);
    H::Store(max_ + lane, max);
    // A lane that has not seen anything yet keeps its distance from minus infinity.
    const V base = H::Max(max, H::Set(-65504.0f));
    float before[kMaxLanes], after[kMaxLanes];
    H::ToFloats(H::Max(old, H::Set(-65504.0f)), before);
    H::ToFloats(base, after);
    for (int64_t i = 0; i < kLanes; i += S::kLanes) {
      S::F x[1] = {S::Mul(S::Sub(S::Load(before + i), S::Load(after + i)), S::Load(power_ + lane + i))};
      ExpNonPositive(x);  // exactly 1 where the maximum has not moved
      S::Store(shrink + i, x[0]);
    }
    typename H::Sums sum = H::NoSums();
    for (int64_t key = begin; key < end; key += 4) {
      V x[4];
      for (int i = 0; i < 4; ++i) x[i] = H::Mul(H::Sub(H::Load(scores + (key + i) * kLanes), base), scale);
      ExpOfHalf<H>(x);
      for (int i = 0; i < 4; ++i) H::Store(scores + (key + i) * kLanes, x[i]);
      H::AddTo(sum, H::Add(x[0], x[1]));
      H::AddTo(sum, H::Add(x[2], x[3]));
    }
    H::Accumulate(sum_ + lane, H::LoadSums(shrink), sum);
  }

  // acc[d][lane] = acc * shrink + weighted values of the step's keys.
  void Values(const uint8_t* const* v, int64_t stride, KeyRange keys, const float* shrink, float* acc) const {
    constexpr int kWide = 16;
    int64_t d = 0;
    for (; d + kWide <= t_.head_dim; d += kWide) ValueColumns<kWide>(v, stride, keys, d, shrink, acc);
    for (; d < t_.head_dim; ++d) ValueColumns<1>(v, stride, keys, d, shrink, acc);
  }
  template <int kD>
  CELER_INLINE void ValueColumns(const uint8_t* const* v, int64_t stride, KeyRange keys, int64_t d,
                                 const float* shrink, float* acc) const {
    V sum[1][kD];
    for (int i = 0; i < kD; ++i) sum[0][i] = H::Set(0);
    for (int64_t key = keys.begin; key < keys.end;) {
      const uint8_t* value = v[key / kSegmentKeys] + key % kSegmentKeys * stride + d * 2;
      const int64_t segment_end = (key / kSegmentKeys + 1) * kSegmentKeys;
      for (const int64_t to = segment_end < keys.end ? segment_end : keys.end; key < to;
           ++key, value += stride) {
        const V weight[1] = {H::Load(scores_ + key * kLanes)};
        for (int i = 0; i < kD; ++i) H::template FmaElement<1, kD>(weight, value + i * 2, sum, i);
      }
    }
    for (int i = 0; i < kD; ++i) {
      typename H::Sums wide = H::NoSums();
      H::AddTo(wide, sum[0][i]);
      H::Accumulate(acc + (d + i) * kLanes, H::LoadSums(shrink), wide);
    }
  }

  // The same for kFew: acc[row][d].
  void ValuesByDims(const uint8_t* const* v, int64_t stride, KeyRange keys, const float* shrink) const {
    int64_t r = 0;
    for (; r + 8 <= rows_; r += 8) ValueRows<8>(v, stride, keys, r, shrink);
    for (; r + 4 <= rows_; r += 4) ValueRows<4>(v, stride, keys, r, shrink);
    for (; r < rows_; ++r) ValueRows<1>(v, stride, keys, r, shrink);
  }
  template <int kR>
  void ValueRows(const uint8_t* const* v, int64_t stride, KeyRange keys, int64_t row,
                 const float* shrink) const {
    using Wide = typename H::Wide;
    using Narrow = typename H::Narrow;
    constexpr int64_t kWide = Wide::kLanes, kNarrow = Narrow::kLanes;
    int64_t d = 0;
    for (; d + 2 * kWide <= t_.head_dim; d += 2 * kWide)
      ValuesOf<Wide, kR, 2>(v, stride, keys, row, d, kWide, shrink);
    for (; d + kWide <= t_.head_dim; d += kWide)
      ValuesOf<Wide, kR, 1>(v, stride, keys, row, d, kWide, shrink);
    for (; d < t_.head_dim; d += kNarrow) {
      const int64_t left = t_.head_dim - d;
      ValuesOf<Narrow, kR, 1>(v, stride, keys, row, d, left < kNarrow ? left : kNarrow, shrink);
    }
  }
  template <class D, int kR, int kV>
  CELER_INLINE void ValuesOf(const uint8_t* const* v, int64_t stride, KeyRange keys, int64_t row, int64_t d,
                             int64_t some, const float* shrink) const {
    typename D::V sum[kV][kR];
    for (int i = 0; i < kV; ++i)
      for (int r = 0; r < kR; ++r) sum[i][r] = D::Set(0);
    for (int64_t key = keys.begin; key < keys.end;) {
      const uint8_t* value = v[key / kSegmentKeys] + key % kSegmentKeys * stride + d * 2;
      const int64_t segment_end = (key / kSegmentKeys + 1) * kSegmentKeys;
      for (const int64_t to = segment_end < keys.end ? segment_end : keys.end; key < to;
           ++key, value += stride) {
        typename D::V part[kV];
        for (int i = 0; i < kV; ++i) part[i] = D::LoadSome(value + i * D::kLanes * 2, some);
        const auto* weight = reinterpret_cast<const uint8_t*>(scores_ + key * kLanes + row);
        for (int r = 0; r < kR; ++r) D::template FmaElement<kV, kR>(part, weight + r * 2, sum, r);
      }
    }
    for (int r = 0; r < kR; ++r)
      for (int i = 0; i < kV; ++i) {
        typename D::Sums wide = D::NoSums();
        D::AddTo(wide, sum[i][r]);
        D::Accumulate(acc_ + (row + r) * padded_ + d + i * D::kLanes, D::SetSums(shrink[row + r]), wide);
      }
  }

  const AttentionTile& t_;
  const int64_t rows_, blocks_, padded_;  // blocks of lanes
  float* acc_;                            // [blocks, padded, kLanes]; kFew: [rows, padded], the tile's own
  Half* query_;                           // [blocks, padded, kLanes]
  Half* scores_;                          // [kSoftmaxKeys, kLanes]; after Softmax the weights
  Half* decoded_;                         // int8: [K and V, kSoftmaxKeys, padded]
  float *power_, *sum_;                   // [blocks, kLanes]
  Half *max_, *scale_;                    // [blocks, kLanes], of scores as they are stored
  int32_t *first_, *last_;                // [blocks, kLanes], the keys that a lane sees
};

}  // namespace
}  // namespace celer
