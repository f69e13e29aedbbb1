// Fills units of activation_tile.h; included by one file per instruction set.
#pragma once

#include <string.h>

#include "kernels/llm/matmul/cpu/x86/activation_tile.h"
#include "kernels/llm/matmul/cpu/x86/vec_x86.h"

namespace celer::x86 {
namespace {

#if defined(__AVX512F__)
// Of magnitudes, whose bits are in their order: NaN, which max_ps would drop, is the largest.
CELER_X86_INLINE VecF MaxF(VecF a, VecF b) {
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
CELER_X86_INLINE VecF MinF(VecF a, VecF b) {
  return _mm512_min_ps(a, b);
}
CELER_X86_INLINE float SumLanes(VecF v) {
  return _mm512_reduce_add_ps(v);
}
CELER_X86_INLINE VecF AbsF(VecF v) {
  return _mm512_abs_ps(v);
}
CELER_X86_INLINE float LargestLane(VecF v) {
  return _mm512_cvtss_f32(
      _mm512_castsi512_ps(_mm512_set1_epi32(_mm512_reduce_max_epi32(_mm512_castps_si512(v)))));
}
CELER_X86_INLINE int32_t SumLanes(VecI v) {
  return _mm512_reduce_add_epi32(v);
}
CELER_X86_INLINE void StoreAsBytes(int8_t* p, VecI v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
#else
CELER_X86_INLINE VecF MaxF(VecF a, VecF b) {  // as above
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
CELER_X86_INLINE VecF MinF(VecF a, VecF b) {
  return _mm256_min_ps(a, b);
}
CELER_X86_INLINE float SumLanes(VecF v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
CELER_X86_INLINE VecF AbsF(VecF v) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}
CELER_X86_INLINE float LargestLane(VecF v) {
  const __m256i bits = _mm256_castps_si256(v);
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1))));
}
CELER_X86_INLINE int32_t SumLanes(VecI v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}
CELER_X86_INLINE void StoreAsBytes(int8_t* p, VecI v) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
#endif

CELER_X86_INLINE float Largest(const float* x, int64_t n) {
  VecF largest = ZeroF();
  for (int64_t i = 0; i < n; i += kLanes) largest = MaxF(largest, AbsF(LoadF(x + i)));
  return LargestLane(largest);
}

CELER_X86_INLINE float InverseOf(float largest) {
  return largest > 0 ? 127.0f / largest : 0.0f;
}
constexpr float kStep = 1.0f / 127;
constexpr float kOutlier = 1.5f;  // times a typical block's largest value

// What is left of a token's last 64 bytes.
inline void ZeroTail(uint8_t* values, int t, int64_t token_bytes) {
  if (const int64_t rest = token_bytes % 64; rest != 0)
    memset(values + XAt(token_bytes) + t * 64, 0, static_cast<size_t>(64 - rest));
}

inline void PrepareBlocks(const float* const* rows, int tokens, int64_t cols, uint8_t* out) {
  const XBlocks x = XBlocksAt(out, cols);
  if (tokens < kXTokens) memset(x.scale, 0, static_cast<size_t>(cols / kBlockCols * kXTokens * 12));
  for (int t = 0; t < tokens; ++t) {
    for (int64_t b = 0; b < cols / kBlockCols; ++b) {
      const float* const from = rows[t] + b * kBlockCols;
      int8_t* const q = x.q + XAt(b * kBlockCols) + t * 64;
      const float largest = Largest(from, kBlockCols);
      const VecF inverse = SetF(InverseOf(largest));
      VecI sums = ZeroI();
      for (int i = 0; i < kBlockCols; i += kLanes) {
        const VecI values = ToNearest(Mul(LoadF(from + i), inverse));
        StoreAsBytes(q + i, values);
        sums = AddI(sums, values);
      }
      const int32_t sum = SumLanes(sums);
      const int64_t at = b * kXTokens + t;
      x.scale[at] = largest * kStep;
      x.sum[at] = largest * kStep * static_cast<float>(sum);
      x.isum[at] = sum;
    }
    ZeroTail(out, t, cols);
  }
}

// The mean of n maxima, where none counts for more than twice the mean: a few outliers hardly move it. Zeros
// follow up to a multiple of kLanes.
inline float TypicalLargest(const float* largest, int64_t n) {
  float mean = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const VecF most = SetF(pass == 0 ? 3e38f : 2 * mean);
    VecF sum = ZeroF();
    for (int64_t i = 0; i < n; i += kLanes) sum = Add(sum, MinF(LoadF(largest + i), most));
    mean = SumLanes(sum) / static_cast<float>(n);
  }
  return mean;
}

// What a row's integers sum up to.
struct RowSums {
  VecI low = ZeroI();  // of the low parts
#if defined(__AVX512F__)
  VecI high = ZeroI();
#else
  int32_t high = 0, rest = 0;  // rest: of low parts that are not in `low`
#endif
};

// n values (a multiple of 32, at most 64) of which some need more than eight bits.
#if defined(__AVX512F__)
inline void QuantizeOutliers(const float* from, int64_t n, float inverse, int32_t step, int8_t* q,
                             XHigh* high, int32_t& highs, RowSums& sums) {
  for (int64_t i = 0; i < n; i += kLanes, step += 4) {
    const VecI v = ToNearest(Mul(LoadF(from + i), SetF(inverse)));
    const __mmask16 beyond = _mm512_cmpgt_epi32_mask(_mm512_abs_epi32(v), SetI(127));
    const VecI upper = _mm512_maskz_srai_epi32(beyond, AddI(v, SetI(64)), 7);
    const VecI lower = _mm512_sub_epi32(v, _mm512_slli_epi32(upper, 7));
    StoreAsBytes(q + i, lower);
    sums.low = AddI(sums.low, lower);
    sums.high = AddI(sums.high, upper);
    if (!beyond) continue;
    alignas(16) int8_t bytes[kLanes];
    StoreAsBytes(bytes, upper);
    for (int j = 0; j < 4; ++j) {
      if (!(beyond >> 4 * j & 15)) continue;
      high[highs].step = step + j;
      memcpy(high[highs++].q, bytes + 4 * j, 4);
    }
  }
}
#else
inline void QuantizeOutliers(const float* from, int64_t n, float inverse, int32_t step, int8_t* q,
                             XHigh* high, int32_t& highs, RowSums& sums) {
  alignas(64) int32_t values[64];
  for (int64_t i = 0; i < n; i += kLanes) StoreI(values + i, ToNearest(Mul(LoadF(from + i), SetF(inverse))));
  for (int64_t i = 0; i < n; i += 4, ++step) {
    XHigh entry{step, {}};
    bool any = false;
    for (int64_t j = 0; j < 4; ++j) {
      const int32_t v = values[i + j];
      const int32_t upper = v > 127 || v < -127 ? (v + 64) >> 7 : 0;
      const int32_t lower = v - upper * 128;
      q[i + j] = static_cast<int8_t>(lower);
      entry.q[j] = static_cast<int8_t>(upper);
      any |= upper != 0;
      sums.rest += lower;
      sums.high += upper;
    }
    if (any) high[highs++] = entry;
  }
}
#endif

// The largest magnitude of each 64 values, n of them in all.
inline void BlockAbsMax(const float* x, int64_t n, float* largest) {
  constexpr int64_t kCols = 64;
  int64_t c = 0;
#if defined(__AVX512F__)
  // Four blocks at a time, so that four registers share the steps across lanes.
  for (; c + 4 * kCols <= n; c += 4 * kCols, largest += 4) {
    VecF v[4];
    For<4>(CELER_EACH(i) {
      const float* const from = x + c + i * kCols;
      v[i] = MaxF(MaxF(AbsF(LoadF(from)), AbsF(LoadF(from + 16))),
                  MaxF(AbsF(LoadF(from + 32)), AbsF(LoadF(from + 48))));
    });
    const auto halves = [](VecF a, VecF b) {
      return MaxF(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    VecF all = halves(halves(v[0], v[1]), halves(v[2], v[3]));  // block i's in lanes 4 i to 4 i + 3
    all = MaxF(all, _mm512_permute_ps(all, 0xb1));
    all = MaxF(all, _mm512_permute_ps(all, 0x4e));
    _mm512_mask_compressstoreu_ps(largest, 0x1111, all);
  }
#endif
  for (; c < n; c += kCols) *largest++ = Largest(x + c, n - c < kCols ? n - c : kCols);
}

// Tokens whose row is null are left as they are.
inline void PrepareRow(const float* const* rows, int tokens, int64_t cols, uint8_t* out) {
  constexpr int64_t kCols = 64;
  const XRow x = XRowAt(out, cols);
  alignas(64) float largest[kMaxRowCols / kCols];
  const int64_t blocks = (cols + kCols - 1) / kCols;
  for (int t = 0; t < tokens; ++t) {
    if (!rows[t]) continue;
    BlockAbsMax(rows[t], cols, largest);
    for (int64_t b = blocks; b % kLanes != 0; ++b) largest[b] = 0;
    const float top = Largest(largest, (blocks + kLanes - 1) / kLanes * kLanes);
    // What is beyond is an outlier, and has seven bits more.
    float limit = kOutlier * TypicalLargest(largest, blocks);
    if (limit > top) limit = top;
    if (limit < top / 128) limit = top / 128;
    if (!(top < __builtin_inff())) limit = top;  // not finite: nor is the scale
    const float inverse = InverseOf(limit);
    int32_t highs = 0;
    RowSums sums;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t n = cols - b * kCols < kCols ? cols - b * kCols : kCols;
      const float* const from = rows[t] + b * kCols;
      int8_t* const q = x.q + XAt(b * kCols) + t * 64;
      if (largest[b] > limit) {
        QuantizeOutliers(from, n, inverse, static_cast<int32_t>(b * kCols / 4), q, x.high + t * (cols / 4),
                         highs, sums);
        continue;
      }
      for (int64_t i = 0; i < n; i += kLanes) {
        const VecI values = ToNearest(Mul(LoadF(from + i), SetF(inverse)));
        StoreAsBytes(q + i, values);
        sums.low = AddI(sums.low, values);
      }
    }
    x.scale[t] = limit * kStep;
#if defined(__AVX512F__)
    x.isum[t] = SumLanes(sums.low);
    x.high_sum[t] = SumLanes(sums.high);
#else
    x.isum[t] = SumLanes(sums.low) + sums.rest;
    x.high_sum[t] = sums.high;
#endif
    x.highs[t] = highs;
    ZeroTail(out, t, cols);
  }
  if (!rows[tokens - 1]) return;
  for (int t = tokens; t < kXTokens; ++t) {
    x.scale[t] = 0;
    x.isum[t] = x.high_sum[t] = x.highs[t] = 0;
  }
}

inline void PrepareSupers(const float* const* rows, int tokens, int64_t cols, uint8_t* out) {
  const XSupers x = XSupersAt(out, cols);
  if (tokens < kXTokens) memset(x.scale, 0, static_cast<size_t>(x.bytes - XValues(cols)));
  for (int t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < cols; c += kSuperCols) {
      const int64_t super = c / kSuperCols;
      const float* const from = rows[t] + c;
      const float largest = Largest(from, kSuperCols);
      const VecF inverse = SetF(InverseOf(largest));
      for (int64_t b = 0; b < kSuperCols / kBlockCols; ++b) {
        int8_t* const q = x.q + XAt(c + b * kBlockCols) + t * 64;
        int32_t sums[2];
        for (int half = 0; half < 2; ++half) {
          VecI sum = ZeroI();
          for (int i = 16 * half; i < 16 * half + 16; i += kLanes) {
            const VecI values = ToNearest(Mul(LoadF(from + b * kBlockCols + i), inverse));
            StoreAsBytes(q + i, values);
            sum = AddI(sum, values);
          }
          sums[half] = SumLanes(sum);
        }
        int16_t* const sum16 = x.sum16 + ((super * 8 + b) * kXTokens + t) * 2;
        sum16[0] = static_cast<int16_t>(sums[0]);
        sum16[1] = static_cast<int16_t>(sums[1]);
        x.sum32[((super * 4 + b / 2) * kXTokens + t) * 2 + b % 2] = static_cast<int16_t>(sums[0] + sums[1]);
      }
      x.scale[super * kXTokens + t] = largest * kStep;
    }
  }
}

// x / rms(x) * weight
inline void NormRow(const float* x, const float* weight, float eps, int64_t cols, float* out) {
  VecF sum[4] = {ZeroF(), ZeroF(), ZeroF(), ZeroF()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= cols; i += 4 * kLanes)
    For<4>(CELER_EACH(j) { sum[j] = Fma(LoadF(x + i + j * kLanes), LoadF(x + i + j * kLanes), sum[j]); });
  float squares = SumLanes(Add(Add(sum[0], sum[1]), Add(sum[2], sum[3])));
  for (; i < cols; ++i) squares += x[i] * x[i];
  const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(cols) + eps);
  for (i = 0; i + kLanes <= cols; i += kLanes)
    StoreF(out + i, Mul(Mul(LoadF(x + i), SetF(scale)), LoadF(weight + i)));
  for (; i < cols; ++i) out[i] = x[i] * scale * weight[i];
}

// Round to nearest even; NaN keeps its sign and a set mantissa bit.
CELER_X86_INLINE uint16_t ToBf16(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const uint32_t nan = bits >> 16 | 0x40;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
}

inline void PrepareXTile(XKind kind, const float* const* rows, int tokens, int64_t cols, uint8_t* out) {
  switch (kind) {
    case XKind::kBlocks:
      return PrepareBlocks(rows, tokens, cols, out);
    case XKind::kRow:
      return PrepareRow(rows, tokens, cols, out);
    case XKind::kSupers:
      return PrepareSupers(rows, tokens, cols, out);
    case XKind::kFloat:
      for (int t = 0; t < tokens; ++t)
        memcpy(reinterpret_cast<float*>(out) + t * XFloatStride(cols), rows[t],
               static_cast<size_t>(cols) * 4);
      return;
    case XKind::kBf16:
      for (int t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < cols; c += 32) {
          auto* const to = reinterpret_cast<uint16_t*>(out + XAt(2 * c) + t * 64);
          const int64_t n = cols - c < 32 ? cols - c : 32;
          for (int64_t i = 0; i < n; ++i) to[i] = ToBf16(rows[t][c + i]);
        }
        ZeroTail(out, t, 2 * cols);
      }
      return;
    case XKind::kNibbles:
    case XKind::kNibblesMin:
      break;
  }
}

}  // namespace
}  // namespace celer::x86
