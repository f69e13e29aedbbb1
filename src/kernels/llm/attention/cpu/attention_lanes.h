// A tile with rows of queries in the lanes, whatever tokens they belong to: an element of a key times the
// same element of four queries is one instruction, so scores, maxima and sums need no horizontal reduction,
// and a weight is an element that multiplies columns of a value. Loops (attention_lane_loops.h) name the type
// of queries and weights; accumulators and the softmax are in f32. See simd.h for the unnamed namespace.
//
// A row's result does not depend on the others: what they see and it does not is masked, with weight zero.
//
// Range: queries are brought to [0.5, 1) by a power of two, so no score is infinite or lost whatever the KV
// type holds, and the power comes back in the difference to the largest score. Finite queries, keys and
// values give finite results; NaN stays NaN.
#pragma once

#include "kernels/llm/attention/cpu/attention_lane_loops.h"
#include "kernels/llm/attention/cpu/attention_tile.h"
#include "kernels/shared/simd.h"
#include "kernels/shared/tanh_lanes.h"

namespace celer {
namespace {

CELER_INLINE float Clamped(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;  // NaN stays
}

// What rows hold, if it is not what Loops take: it is converted first, to f16 or f32 as those say. int8 has a
// scale to each row.
enum class PackFrom { kNothing, kF16, kBf16, kInt8 };

template <class Loops, PackFrom kFrom = PackFrom::kNothing>
class LanesTile {
  using Element = typename Loops::Element;
  static constexpr int64_t kRows = Loops::kRows, kColumns = Loops::kColumns,
                           kSegments = kSoftmaxKeys / kSegmentKeys;
  static constexpr int64_t kTogether = 8;  // keys whose scores are computed together
  static constexpr int kVectors = Loops::kRows / 4;
  static constexpr bool kHalf = sizeof(Element) == 2, kInt8 = kFrom == PackFrom::kInt8;
  static constexpr int64_t kRowBytes = kFrom == PackFrom::kNothing ? Loops::kBytes
                                       : kInt8                     ? 1
                                                                   : 2;  // an element
  static constexpr float kLn2 = 0.693147181f, kLowest = -3.402823466e38f;
  // Weights are 2^kWeightBits at most. In f16 that leaves 39 powers of two for smaller ones; in f32 sums of a
  // million values stay finite whatever those are.
  static constexpr int kWeightBits = kHalf ? 15 : -20;
  static constexpr float kLowestPower = -127 - kWeightBits;  // whose weight is exactly zero

 public:
  explicit LanesTile(const AttentionTile& tile)
      : t_(tile),
        rows_(tile.tokens * tile.group),
        count_((rows_ + kRows - 1) / kRows),
        padded_(PaddedDim(tile.head_dim)),
        packs_(kFrom != PackFrom::kNothing || padded_ != tile.head_dim),
        stride_(packs_ ? padded_ * Loops::kBytes : tile.row_bytes) {
    float* p = tile.scratch;
    scores_ = p, p += kSoftmaxKeys * kRows;
    weights_ = reinterpret_cast<Element*>(p), p += kSoftmaxKeys * kRows;
    k_scale_ = p, p += kSoftmaxKeys;
    v_scale_ = p, p += kSoftmaxKeys;
    packed_ = reinterpret_cast<uint8_t*>(p), p += 2 * kSoftmaxKeys * padded_;
    blocks_ = reinterpret_cast<Block*>(p), p += count_ * int64_t{sizeof(Block) / sizeof(float)};
    acc_ = p, p += count_ * kRows * padded_;
    query_ = reinterpret_cast<Element*>(p);
    for (const uint8_t*& row : v_rows_) row = packed_;
    for (const uint8_t*& row : next_rows_) row = packed_;
  }

  void Run() {
    for (int64_t i = 0; i < count_; ++i) {
      Block& block = blocks_[i];
      if (!t_.same_queries) Prepare(i);
      for (int r = 0; r < kRows; ++r) block.top[r] = kLowest, block.sum[r] = 0, block.v_unit[r] = 0x1p-126f;
    }
    memset(acc_, 0, static_cast<size_t>(count_ * kRows * padded_) * sizeof(float));
    for (int64_t key = t_.key_begin; key < t_.key_end; key += kSoftmaxKeys)
      t_.tokens <= 2 ? Step<true>(key) : Step<false>(key);
    for (int64_t row = 0; row < rows_; ++row) Finish(row);
  }

 private:
  // A score is (a product with the prepared query) * unit * ln 2: then weights are powers of two. With a softcap
  // or ALiBi the products' unit is `capped`, and that of what they become is 1.
  struct Block {
    float unit[kRows], sum[kRows], capped[kRows];
    float top[kRows];     // the largest product so far
    float v_unit[kRows];  // int8: a power of two above the scales of the values so far, acc is in units of it
  };

  void Prepare(int64_t index) {
    Block& block = blocks_[index];
    Element* const to = query_ + index * kRows * padded_;
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t row = index * kRows + i;
      float* const from = reinterpret_cast<float*>(packed_) + i * padded_;  // which nothing else needs yet
      memset(from, 0, static_cast<size_t>(padded_) * sizeof(float));
      block.unit[i] = block.capped[i] = 1;
      if (row >= rows_) continue;
      memcpy(from, t_.q + row / t_.group * t_.token_stride + row % t_.group * t_.head_dim,
             static_cast<size_t>(t_.head_dim) * sizeof(float));
      float32x4_t tops = vdupq_n_f32(0);
      for (int64_t d = 0; d < padded_; d += 4) tops = vmaxq_f32(tops, vabsq_f32(vld1q_f32(from + d)));
      PowerOfTwo power(vmaxvq_f32(tops));
      // In f32 a product of keys of any size must stay finite, and there is room for smaller queries.
      const float room = kHalf ? 1 : kQueryRoom;
      for (int64_t d = 0; d < padded_; d += 4)
        vst1q_f32(from + d, vmulq_n_f32(vld1q_f32(from + d), power.below * room));
      // Beyond these bounds weights are 0 or 1, and all alike.
      block.unit[i] = Clamped(power.above * (t_.scale * (1 / (kLn2 * room))), 0x1p-126f, 0x1p100f);
      if (t_.softcap != 0 || t_.slopes) block.capped[i] = block.unit[i], block.unit[i] = 1;
    }
    const float* from = reinterpret_cast<const float*>(packed_);
    for (int64_t d = 0; d < padded_; ++d)
      for (int64_t i = 0; i < kRows; ++i) to[d * kRows + i] = static_cast<Element>(from[i * padded_ + d]);
  }

  // The keys of one step of the running softmax. kOnce: their rows are read once, and asked for early.
  template <bool kOnce>
  void Step(int64_t start) {
    // Positions ascend: the first token sees the earliest keys, the last one the latest.
    const int64_t first_seen = FirstKey(t_, 0) > start ? FirstKey(t_, 0) - start : 0;
    const int64_t last_seen = t_.positions[t_.tokens - 1] - start;
    if (first_seen >= kSoftmaxKeys || last_seen < 0) return;
    for (int64_t s = first_seen / kSegmentKeys; s < kSegments && s * kSegmentKeys <= last_seen; ++s) {
      const int64_t key = start + s * kSegmentKeys, at = RowOf(t_, t_.blocks, key);
      const uint8_t *k = t_.k + at, *v = t_.v + at;
      Segment& segment = segments_[s];
      segment.soon_v = v;
      RowsAhead ahead;
      if (kOnce) ahead = LookAhead(t_, key + kSoftmaxKeys);
      segment.next_v = ahead.v ? ahead.v : v;
      const uint8_t* const next_k = ahead.k ? ahead.k : k;
      if (packs_) {
        const int64_t left = last_seen + 1 - s * kSegmentKeys,
                      keys = left < kSegmentKeys ? left : kSegmentKeys;
        k = Pack(t_.k, k, key, keys, s * kSegmentKeys, k_scale_);
        v = Pack(t_.v, v, key, keys, s * kSegmentKeys + kSoftmaxKeys, v_scale_ - kSoftmaxKeys);
        segment.soon_v = segment.next_v;  // packed before anything else
      }
      segment.k = k;
      for (int64_t i = 0; i < kSegmentKeys; ++i) {
        v_rows_[s * kSegmentKeys + i] = v + i * stride_;
        next_rows_[s * kSegmentKeys + i] = next_k + i * t_.row_bytes;
      }
    }
    for (int64_t i = 0; i < count_; ++i) {
      const int64_t row = i * kRows, rows = rows_ - row < kRows ? rows_ - row : kRows;
      const KeyRange first = Visible(row, start), last = Visible(row + rows - 1, start);
      const KeyRange seen = {first.begin, last.end};  // by any of them
      if (seen.empty()) continue;
      Scores<kOnce>(query_ + row * padded_, seen);
      if constexpr (kInt8) ScaleScores(seen);
      if (t_.softcap != 0) CapScores(blocks_[i], seen);
      if (t_.slopes) AddBiases(blocks_[i], row, rows, start, seen);
      MaskKeys(row, rows, start, seen, !(first == last));
      alignas(16) float shrink[kRows];
      Softmax(blocks_[i], row, rows, start, shrink);
      float* const acc = acc_ + row * padded_;
      for (int64_t d = 0; d < padded_; d += kColumns)
        Loops::Values(v_rows_ + seen.begin, (kOnce ? next_rows_ : v_rows_) + seen.begin, d * Loops::kBytes,
                      d * kRowBytes, weights_ + seen.begin * kRows, seen.end - seen.begin, shrink,
                      acc + d * kRows);
    }
  }

  // The keys of a step that a row sees.
  KeyRange Visible(int64_t row, int64_t start) const {
    return VisibleKeys(t_, row / t_.group, start, kSoftmaxKeys);
  }

  // Rows of a segment as Loops take them, with zeros behind each, at `slot` of the packed rows; and their
  // scales.
  const uint8_t* Pack(const uint8_t* base, const uint8_t* rows, int64_t key, int64_t keys, int64_t slot,
                      float* scales) {
    uint8_t* const out = packed_ + slot * stride_;
    if constexpr (kInt8) {
      const int64_t block = BlockOf(t_, key), in_block = key - block * t_.block_size;
      memcpy(scales + slot,
             base + t_.blocks[block] * t_.block_bytes + t_.scale_offset + in_block * int64_t{sizeof(float)},
             static_cast<size_t>(keys) * sizeof(float));
    }
    constexpr int64_t kN = 16;
    for (int64_t i = 0; i < keys; ++i) {
      const uint8_t* const from = rows + i * t_.row_bytes;
      uint8_t* const to = out + i * stride_;
      int64_t d = 0;
      for (; d + kN <= t_.head_dim; d += kN) Convert16(from + d * kRowBytes, to + d * Loops::kBytes);
      if (d == t_.head_dim) continue;
      uint8_t end[kN * kRowBytes] = {};
      memcpy(end, from + d * kRowBytes, static_cast<size_t>((t_.head_dim - d) * kRowBytes));
      Convert16(end, to + d * Loops::kBytes);
    }
    return out;
  }
  static CELER_INLINE void Convert16(const uint8_t* from, uint8_t* to) {
    auto* const floats = reinterpret_cast<float*>(to);
    if constexpr (kFrom == PackFrom::kNothing) {
      memcpy(to, from, 16 * Loops::kBytes);
    } else if constexpr (kFrom == PackFrom::kF16) {
      for (int i = 0; i < 16; i += 4)
        vst1q_f32(floats + i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from + 2 * i))));
    } else if constexpr (kFrom == PackFrom::kBf16) {
      for (int i = 0; i < 16; i += 4)
        vst1q_u32(reinterpret_cast<uint32_t*>(floats + i),
                  vshll_n_u16(vreinterpret_u16_u8(vld1_u8(from + 2 * i)), 16));
    } else if constexpr (Loops::kBytes == 2) {
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
      // The half with the bits 0x6400 + u is 1024 + u, so with u = value + 128 it is value + 1152.
      const uint8x16_t u = veorq_u8(vld1q_u8(from), vdupq_n_u8(0x80)), high = vdupq_n_u8(0x64);
      const float16x8_t offset = vdupq_n_f16(1152);
      vst1q_u8(to, vreinterpretq_u8_f16(vsubq_f16(vreinterpretq_f16_u8(vzip1q_u8(u, high)), offset)));
      vst1q_u8(to + 16, vreinterpretq_u8_f16(vsubq_f16(vreinterpretq_f16_u8(vzip2q_u8(u, high)), offset)));
#endif
    } else {
      const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(from));
      const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
      vst1q_f32(floats, vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))));
      vst1q_f32(floats + 4, vcvtq_f32_s32(vmovl_high_s16(low)));
      vst1q_f32(floats + 8, vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))));
      vst1q_f32(floats + 12, vcvtq_f32_s32(vmovl_high_s16(high)));
    }
  }

  // scores_[key][row] for the keys that are seen, and for others next to them, which do not matter.
  template <bool kOnce>
  void Scores(const Element* query, const KeyRange& seen) {
    for (int64_t key = seen.begin / kTogether * kTogether; key < seen.end; key += kTogether) {
      const Segment& segment = segments_[key / kSegmentKeys];
      const int64_t at = key % kSegmentKeys;
      const uint8_t* const k = segment.k + at * stride_;
      Loops::Scores(query, k, stride_, padded_, scores_ + key * kRows,
                    kOnce ? segment.soon_v + at * t_.row_bytes : k,
                    kOnce ? segment.next_v + at * t_.row_bytes : k);
    }
  }

  // int8: products with keys, whose scales are still to be multiplied.
  void ScaleScores(const KeyRange& seen) {
    float* const scores = scores_;
    const float32x4_t lowest = vdupq_n_f32(kLowest), highest = vdupq_n_f32(-kLowest);
    for (int64_t key = seen.begin; key < seen.end; ++key)
      for (int v = 0; v < kVectors; ++v) {
        const float32x4_t score = vmulq_n_f32(vld1q_f32(scores + key * kRows + v * 4), k_scale_[key]);
        vst1q_f32(scores + key * kRows + v * 4, vminq_f32(vmaxq_f32(score, lowest), highest));
      }
  }

  // From products to capped scores in units of ln 2, which block.unit says.
  void CapScores(const Block& block, const KeyRange& seen) {
    float* const scores = scores_;
    const float32x4_t cap = vdupq_n_f32(t_.softcap * (1 / kLn2));
    for (int v = 0; v < kVectors; ++v) {
      const float32x4_t inverse = vmulq_n_f32(vld1q_f32(block.capped + 4 * v), kLn2 / t_.softcap);
      for (int64_t key = seen.begin; key < seen.end; ++key) {
        float* const at = scores + key * kRows + v * 4;
        vst1q_f32(at, SoftCap(vld1q_f32(at), cap, inverse));
      }
    }
  }

  // ALiBi's, to products or to capped scores.
  void AddBiases(const Block& block, int64_t row, int64_t rows, int64_t start, const KeyRange& seen) {
    float biases[kSoftmaxKeys];
    for (int64_t i = 0; i < rows; ++i) {
      AlibiBiases(t_, row + i, start, biases);
      const float unit = t_.softcap != 0 ? 1 : block.capped[i];
      for (int64_t key = seen.begin; key < seen.end; ++key) {
        float* const at = scores_ + key * kRows + i;
        *at = Clamped(*at * unit, kLowest, -kLowest) + biases[key] * (1 / kLn2);
      }
    }
  }

  // Minus infinity for what a row does not see.
  void MaskKeys(int64_t row, int64_t rows, int64_t start, const KeyRange& seen, bool differ) {
    float* const scores = scores_;
    const float32x4_t none = vdupq_n_f32(-__builtin_inff());
    for (int64_t i = 0; i < seen.begin * kVectors; ++i) vst1q_f32(scores + i * 4, none);
    for (int64_t i = seen.end * kVectors; i < kSoftmaxKeys * kVectors; ++i) vst1q_f32(scores + i * 4, none);
    for (int64_t i = 0; differ && i < rows; ++i) {
      const KeyRange own = Visible(row + i, start);
      for (int64_t key = seen.begin; key < seen.end; ++key)
        if (key < own.begin || key >= own.end) scores[key * kRows + i] = -__builtin_inff();
    }
  }

  // x <- 2^(x + kWeightBits) for x <= 0: off by 4e-6 of itself if it is rounded to f16 anyway, else by 1e-7.
  template <int kN>
  static CELER_INLINE void Power(float32x4_t (&x)[kN]) {
    const float32x4_t magic = vdupq_n_f32(12582912.0f + 127 + kWeightBits), low = vdupq_n_f32(kLowestPower);
    float32x4_t t[kN], p[kN];
    for (int i = 0; i < kN; ++i) x[i] = vmaxq_f32(x[i], low);
    // x = n + r, |r| <= 1/2. The sum is rounded to an integer, and the exponent stays in its low bits.
    for (int i = 0; i < kN; ++i) t[i] = vaddq_f32(x[i], magic);
    for (int i = 0; i < kN; ++i) x[i] = vsubq_f32(x[i], vsubq_f32(t[i], magic));
    // 2^r, interpolated at the Chebyshev nodes.
    const auto add = [&](float c) __attribute__((always_inline)) {
      for (int i = 0; i < kN; ++i) p[i] = vfmaq_f32(vdupq_n_f32(c), x[i], p[i]);
    };
    for (int i = 0; i < kN; ++i) p[i] = vdupq_n_f32(kHalf ? 0.00966637f : 0.00133909f);
    if constexpr (kHalf)
      add(0.05592198f), add(0.24022349f), add(0.69312105f);
    else
      add(0.00967603f), add(0.05550357f), add(0.24022107f), add(0.69314719f);
    add(1);
    for (int i = 0; i < kN; ++i)
      x[i] = vmulq_f32(p[i], vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t[i]), 23)));
  }

  // From scores_ to weights_; what a row does not see weighs nothing.
  void Softmax(Block& block, [[maybe_unused]] int64_t row, [[maybe_unused]] int64_t rows,
               [[maybe_unused]] int64_t start, float* shrink) {
    // The compiler takes stores of vectors for stores to anything, members too.
    const float* const scores = scores_;
    [[maybe_unused]] const float* const v_scale = v_scale_;
    Element* const weights = weights_;
    float32x4_t top[kVectors], unit[kVectors], sum[kVectors][2];
    {
      float32x4_t tops[4][kVectors];
      for (int v = 0; v < kVectors; ++v)
        for (int i = 0; i < 4; ++i) tops[i][v] = vld1q_f32(block.top + 4 * v);
#pragma GCC unroll 4
      for (int64_t key = 0; key < kSoftmaxKeys; key += 4)
        for (int i = 0; i < 4; ++i)
          for (int v = 0; v < kVectors; ++v)
            tops[i][v] = vmaxq_f32(tops[i][v], vld1q_f32(scores + (key + i) * kRows + 4 * v));
      for (int v = 0; v < kVectors; ++v)
        top[v] = vmaxq_f32(vmaxq_f32(tops[0][v], tops[1][v]), vmaxq_f32(tops[2][v], tops[3][v]));
    }
    // If the maximum has not moved the factor is exactly 1.
    float32x4_t by[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      unit[v] = vld1q_f32(block.unit + 4 * v);
      by[v] =
          vmulq_f32(vmulq_f32(vsubq_f32(vld1q_f32(block.top + 4 * v), top[v]), unit[v]), vdupq_n_f32(kLn2));
      vst1q_f32(block.top + 4 * v, top[v]);
      sum[v][0] = sum[v][1] = vdupq_n_f32(0);
    }
    ExpNonPositive(by);
    [[maybe_unused]] float32x4_t inverse[kVectors];  // of the values' unit
    if constexpr (kInt8) {
      alignas(16) float factor[kRows], below[kRows];
      for (int64_t r = 0; r < kRows; ++r) {
        factor[r] = below[r] = 1;
        if (r < rows) factor[r] = NewValueUnit(block.v_unit[r], Visible(row + r, start), below[r]);
      }
      for (int v = 0; v < kVectors; ++v) {
        inverse[v] = vld1q_f32(below + 4 * v);
        vst1q_f32(shrink + 4 * v, vmulq_f32(by[v], vld1q_f32(factor + 4 * v)));
      }
    } else {
      for (int v = 0; v < kVectors; ++v) vst1q_f32(shrink + 4 * v, by[v]);
    }
    constexpr int kN = 4, kKeys = kN / kVectors;  // at a time: more do not fit into the registers
    for (int64_t key = 0; key < kSoftmaxKeys; key += kKeys) {
      float32x4_t x[kN];
      for (int i = 0; i < kN; ++i) {
        const float32x4_t score = vld1q_f32(scores + key * kRows + 4 * i);
        x[i] = vmulq_f32(vsubq_f32(score, top[i % kVectors]), unit[i % kVectors]);
      }
      Power(x);
      if constexpr (kInt8 || !kHalf)
        for (int i = 0; i < kN; ++i) {
          float32x4_t& to = sum[i % kVectors][i / kVectors % 2];
          to = vaddq_f32(to, x[i]);
        }
      if constexpr (kInt8)
        for (int i = 0; i < kN; ++i)
          x[i] = vmulq_f32(x[i], vmulq_n_f32(inverse[i % kVectors], v_scale[key + i / kVectors]));
      if constexpr (!kHalf) {
        for (int i = 0; i < kN; ++i) vst1q_f32(weights + key * kRows + 4 * i, x[i]);
      } else {
        for (int i = 0; i < kN; i += 2) {
          const float16x8_t two = vcvt_high_f16_f32(vcvt_f16_f32(x[i]), x[i + 1]);
          vst1q_f16(weights + key * kRows + 4 * i, two);
          if (!kInt8) AddRounded(sum, two);  // the sum that divides is that of the rounded weights
        }
      }
    }
    for (int v = 0; v < kVectors; ++v)
      vst1q_f32(block.sum + 4 * v,
                vfmaq_f32(vaddq_f32(sum[v][0], sum[v][1]), vld1q_f32(block.sum + 4 * v), by[v]));
  }
  // Two vectors of weights: of one key, or of two.
  static CELER_INLINE void AddRounded(float32x4_t (&sum)[kVectors][2], float16x8_t two) {
#if defined(__ARM_FEATURE_FP16_FML)
    const float16x8_t ones = vdupq_n_f16(1);
    float32x4_t& high = kVectors == 2 ? sum[1 % kVectors][0] : sum[0][1];
    sum[0][0] = vfmlalq_low_f16(sum[0][0], two, ones);
    high = vfmlalq_high_f16(high, two, ones);
#endif
  }
  // int8: the unit that holds the scales of a row's values of this step too. Returns how many times smaller
  // the last one was.
  float NewValueUnit(float& unit, const KeyRange& seen, float& below) const {
    float top = unit * 0.5f;
    for (int64_t key = seen.begin; key < seen.end; ++key) top = v_scale_[key] > top ? v_scale_[key] : top;
    const PowerOfTwo power(top);
    const float smaller = unit * power.below;
    unit = power.above, below = power.below;
    return smaller;
  }

  void Finish(int64_t row) const {
    const Block& block = blocks_[row / kRows];
    const int64_t i = row % kRows;
    // Weights are at most kWeightRoom from here on, as those of every kernel: int8's values may be of any size, and splits
    // of any number of keys are still to be added up.
    const float by = kHalf ? 0x1p-35f : 1, sum = block.sum[i] * by;
    t_.sum[row] = sum;
    t_.max[row] =
        sum == 0 ? -__builtin_inff() : Clamped(block.top[i] * block.unit[i] * kLn2, kLowest, -kLowest);
    const float unit = kInt8 ? block.v_unit[i] * by : by;
    const float* from = acc_ + row / kRows * kRows * padded_ + i * kColumns;
    float* to = t_.acc + row * padded_;
    for (int64_t d = 0; d < padded_; d += kColumns)
      for (int64_t c = 0; c < kColumns; c += 4)
        vst1q_f32(to + d + c, vmulq_n_f32(vld1q_f32(from + d * kRows + c), unit));
  }

  // The rows of a segment, and those that are prefetched meanwhile: by scores for the same keys' values (into
  // the L1 cache) and the next step's (into the last level), by values for the next step's keys. Rows that
  // are there already where there are no more.
  struct Segment {
    const uint8_t *k = nullptr, *soon_v = nullptr, *next_v = nullptr;
  };

  const AttentionTile& t_;
  const int64_t rows_, count_;  // of queries, and of blocks of them
  const int64_t padded_;
  const bool packs_;           // rows are copied before use
  const int64_t stride_;       // bytes from one row to the next, as they are used
  float* scores_;              // [kSoftmaxKeys, kRows]
  Element* weights_;           // [kSoftmaxKeys, kRows]
  float *k_scale_, *v_scale_;  // int8: [kSoftmaxKeys]
  uint8_t* packed_;            // [K and V, kSoftmaxKeys, stride]
  Block* blocks_;              // [count]
  float* acc_;                 // [count, padded / kColumns, kRows, kColumns]
  Element* query_;             // [count, padded, kRows]
  Segment segments_[kSegments];
  // [kSoftmaxKeys], and what is read behind the last one: any row that was there before.
  const uint8_t *v_rows_[kSoftmaxKeys + 1], *next_rows_[kSoftmaxKeys + 1];
};

}  // namespace
}  // namespace celer
