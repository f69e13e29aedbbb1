// One tile in f32: which queries see which keys, and the online softmax. A Kernel brings the two matrix
// products (attention_float.h).
//
// A query's result does not depend on the tile it is in: a score is a sum over head_dim in a fixed order,
// weighted values are added in the order of the keys, and the softmax advances in steps of kSoftmaxKeys
// counted from key 0.
//
// Range: a prepared query is at most kQueryRoom in magnitude, so no score is infinite whatever the keys are,
// and its unit comes back where scores are scaled; weights are at most kWeightRoom, so that sums of values
// are finite too. Finite queries, keys and values give finite results; NaN stays NaN.
#pragma once

#include "kernels/llm/attention/cpu/attention_tile.h"
#include "kernels/shared/simd.h"
#include "kernels/shared/tanh_lanes.h"

namespace celer {
namespace {

template <class Kernel>
class TileRun {
  using S = Simd;

 public:
  explicit TileRun(const AttentionTile& tile)
      : t_(tile), rows_(tile.tokens * tile.group), padded_(PaddedDim(tile.head_dim)) {
    float* p = tile.scratch;
    query_ = p, p += rows_ * padded_;
    scores_ = p, p += rows_ * kSoftmaxKeys;
    weights_ = p, p += rows_ * kSoftmaxKeys;
    k_scale_ = p, p += kSoftmaxKeys;
    v_scale_ = p, p += kSoftmaxKeys;
    units_ = p, p += rows_;
    decoded_ = p;
  }

  void Run() {
    for (int64_t t = 0; t < t_.tokens; ++t)
      for (int64_t g = 0; g < t_.group; ++g) {
        const int64_t r = t * t_.group + g;
        units_[r] = t_.scale * Kernel::PrepareQuery(t_.q + t * t_.token_stride + g * t_.head_dim, t_.head_dim,
                                                    padded_, query_ + r * padded_);
        t_.max[r] = -__builtin_inff();
        t_.sum[r] = 0;
      }
    memset(t_.acc, 0, static_cast<size_t>(rows_ * padded_) * sizeof(float));
    for (int64_t key = t_.key_begin; key < t_.key_end; key += kSoftmaxKeys) Step(key);
  }

 private:
  static constexpr float kLargest = 3.402823466e38f;

  KeyRange Visible(int64_t token, int64_t start, int64_t n) const { return VisibleKeys(t_, token, start, n); }
  int64_t BlockOffset(int64_t key) const { return t_.blocks[key / t_.block_size] * t_.block_bytes; }
  int64_t RowOffset(int64_t key) const { return BlockOffset(key) + key % t_.block_size * t_.row_bytes; }
  // Prefills come back to the same rows at once; a decode step reads each row once and had better ask early.
  bool ReadsOnce() const { return rows_ <= 16; }
  // Inlined by force: g++ takes a function that only prefetches for one without effect, and drops the call.
  CELER_INLINE void Prefetch(const uint8_t* rows, int64_t keys) const {
    for (int64_t i = 0; i < keys * t_.row_bytes; i += 64) __builtin_prefetch(rows + i, 0, 2);
  }

  void Step(int64_t start) {
    // Positions ascend, so the tokens that see any of these keys are neighbours.
    int64_t first = 0, last = t_.tokens - 1;
    while (first <= last && Visible(first, start, kSoftmaxKeys).empty()) ++first;
    while (last >= first && Visible(last, start, kSoftmaxKeys).empty()) --last;
    if (first > last) return;
    const int64_t begin = Visible(first, start, kSoftmaxKeys).begin;
    const int64_t end = Visible(last, start, kSoftmaxKeys).end;

    for (int64_t s = begin / kSegmentKeys; s * kSegmentKeys < end; ++s) {
      Scores(start + s * kSegmentKeys, s * kSegmentKeys, end - s * kSegmentKeys, first, last);
    }
    for (int64_t t = first; t <= last; ++t) {
      const KeyRange seen = Visible(t, start, kSoftmaxKeys);
      for (int64_t g = 0; g < t_.group; ++g) Softmax(t * t_.group + g, start, seen);
    }
    for (int64_t s = begin / kSpanKeys; s * kSpanKeys < end; ++s)
      Values(start + s * kSpanKeys, s * kSpanKeys, first, last);
  }

  // Scores of one segment; at most `visible` of its keys are unmasked for anyone.
  void Scores(int64_t key, int64_t column, int64_t visible, int64_t first, int64_t last) {
    while (first <= last && Visible(first, key, kSegmentKeys).empty()) ++first;
    while (last >= first && Visible(last, key, kSegmentKeys).empty()) --last;
    if (first > last) return;
    const int64_t keys = visible < kSegmentKeys ? visible : kSegmentKeys;
    const int64_t rows = (last - first + 1) * t_.group, row = first * t_.group;
    const uint8_t* k = t_.k + RowOffset(key);
    if (t_.kind == KvKind::kI8) {
      LoadScales(t_.k, key, keys, k_scale_ + column);
      LoadScales(t_.v, key, keys, v_scale_ + column);
    }
    const auto* query = query_ + row * padded_;
    float* scores = scores_ + row * kSoftmaxKeys + column;
    // While some keys are multiplied, their values and the keys of the next step are prefetched into the L2
    // cache, a few lines at a time: more than the memory system can queue would be dropped, and so are
    // prefetches into L1.
    const uint8_t* v = t_.v + RowOffset(key);
    const RowsAhead ahead = ReadsOnce() ? LookAhead(t_, key + kSoftmaxKeys) : RowsAhead{};
    const uint8_t* next = ahead.k ? ahead.k : k;
    const bool decode = Kernel::kMayDecode && rows > Kernel::kRows;
    if (decode) Kernel::Decode(k, t_.row_bytes, k_scale_ + column, keys, t_.head_dim, padded_, decoded_);
    const int64_t at_once = ReadsOnce() ? 4 : kSegmentKeys;
    for (int64_t i = 0; i < keys; i += at_once) {
      const int64_t n = keys - i < at_once ? keys - i : at_once;
      if (ReadsOnce()) {
        Prefetch(v + i * t_.row_bytes, n);
        Prefetch(next + i * t_.row_bytes, n);
      }
      if (decode)
        Kernel::DecodedScores(query, padded_, rows, decoded_ + i * padded_, padded_, n, t_.head_dim,
                              scores + i);
      else
        Kernel::Scores(query, padded_, rows, k + i * t_.row_bytes, t_.row_bytes, n, t_.head_dim, scores + i);
    }
  }

  void LoadScales(const uint8_t* base, int64_t key, int64_t keys, float* out) const {
    const uint8_t* scales = base + BlockOffset(key) + t_.scale_offset + key % t_.block_size * sizeof(float);
    memcpy(out, scales, static_cast<size_t>(keys) * sizeof(float));
  }

  void Softmax(int64_t row, int64_t start, KeyRange seen) {
    float* s = scores_ + row * kSoftmaxKeys;
    const S::F none = S::Set(-__builtin_inff());
    // Min and Max give their second operand if one is NaN, or NaN.
    const S::F unit = S::Set(units_[row]), lowest = S::Set(-kLargest), largest = S::Set(kLargest);
    for (int64_t i = 0; i < kSoftmaxKeys; i += S::kLanes) {
      S::F score = S::Load(s + i);
      if (Kernel::kScaled) score = S::Mul(score, S::Load(k_scale_ + i));
      S::Store(s + i, S::Min(largest, S::Max(lowest, S::Mul(score, unit))));
    }
    if (t_.softcap != 0) CapScores(s);
    if (t_.slopes) AddBiases(row, start, s);
    for (int64_t i = 0; i < seen.begin; ++i) s[i] = -__builtin_inff();
    for (int64_t i = seen.end; i < kSoftmaxKeys; ++i) s[i] = -__builtin_inff();

    S::F top = none;
    for (int64_t i = 0; i < kSoftmaxKeys; i += S::kLanes) top = S::Max(top, S::Load(s + i));
    const float block_max = S::MaxOf(top), old_max = t_.max[row];
    float max = old_max;
    if (block_max > old_max) {
      max = block_max;
      t_.max[row] = max;
      if (t_.sum[row] != 0) {
        const float shrink = Exp1(old_max - max);
        t_.sum[row] *= shrink;
        const S::F by = S::Set(shrink);
        float* acc = t_.acc + row * padded_;
        for (int64_t d = 0; d < padded_; d += S::kLanes) S::Store(acc + d, S::Mul(S::Load(acc + d), by));
      }
    }
    t_.sum[row] +=
        Kernel::SoftmaxWeights(s, max, Kernel::kScaled ? v_scale_ : nullptr, weights_ + row * kSoftmaxKeys);
  }

  void AddBiases(int64_t row, int64_t start, float* s) const {
    alignas(64) float biases[kSoftmaxKeys];
    AlibiBiases(t_, row, start, biases);
    for (int64_t i = 0; i < kSoftmaxKeys; i += S::kLanes)
      S::Store(s + i, S::Add(S::Load(s + i), S::Load(biases + i)));
  }

  // Of one row, masked ones too.
  void CapScores(float* s) const {
    const S::F cap = S::Set(t_.softcap), inverse = S::Set(1 / t_.softcap);
    for (int64_t i = 0; i < kSoftmaxKeys; i += S::kLanes)
      S::Store(s + i, SoftCap(S::Load(s + i), cap, inverse));
  }

  // Adds up the weighted values of one span.
  void Values(int64_t key, int64_t column, int64_t first, int64_t last) {
    const int64_t last_key = t_.positions[last];
    const int64_t nearest = Visible(first, key, kSpanKeys).begin;
    const uint8_t* v[kSpanKeys / kSegmentKeys] = {};
    const bool decode = Kernel::kMayDecode && (last - first + 1) * t_.group > Kernel::kRows;
    for (int64_t i = 0; i < kSpanKeys / kSegmentKeys; ++i) {
      const int64_t from = key + i * kSegmentKeys;
      if (from > last_key) break;
      if ((i + 1) * kSegmentKeys <= nearest) continue;  // before every window; the block may be gone
      v[i] = t_.v + RowOffset(from);
      if (decode) {
        float* to = decoded_ + i * kSegmentKeys * padded_;
        const int64_t keys = last_key - from + 1 < kSegmentKeys ? last_key - from + 1 : kSegmentKeys;
        Kernel::Decode(v[i], t_.row_bytes, v_scale_ + column + i * kSegmentKeys, keys, t_.head_dim, padded_,
                       to);
        v[i] = reinterpret_cast<const uint8_t*>(to);
      }
    }
    for (int64_t t = first; t <= last;) {
      const KeyRange seen = Visible(t, key, kSpanKeys);
      int64_t next = t + 1;
      while (next <= last && Visible(next, key, kSpanKeys) == seen) ++next;
      const int64_t row = t * t_.group, rows = (next - t) * t_.group;
      t = next;
      if (seen.empty()) continue;
      const float* weights = weights_ + row * kSoftmaxKeys + column;
      float* acc = t_.acc + row * padded_;
      if (decode)
        Kernel::DecodedValues(weights, rows, v, padded_, seen.begin, seen.end, t_.head_dim, acc, padded_);
      else
        Kernel::Values(weights, rows, v, t_.row_bytes, seen.begin, seen.end, t_.head_dim, acc, padded_);
    }
  }

  const AttentionTile& t_;
  const int64_t rows_, padded_;
  float* query_;    // [rows, padded]
  float* scores_;   // [rows, kSoftmaxKeys]
  float* weights_;  // [rows, kSoftmaxKeys]
  float* units_;    // [rows], of a row's scores
  float* k_scale_;  // [kSoftmaxKeys]
  float* v_scale_;  // [kSoftmaxKeys]
  float* decoded_;  // [kSpanKeys, padded]
};

}  // namespace
}  // namespace celer
