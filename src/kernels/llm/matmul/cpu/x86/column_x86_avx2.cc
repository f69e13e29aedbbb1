#include <immintrin.h>

#include "kernels/llm/matmul/cpu/column.h"

namespace celer::x86 {
namespace {

__m256i Words(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
__m256 Halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
__m256 SignedBytes(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
__m256 UnsignedBytes(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

__m256 Values(const PackedColumn& c, const uint8_t* p) {
  const __m128i left = _mm_cvtsi32_si128(c.left), right = _mm_cvtsi32_si128(c.right);
  __m256i w = Words(p);
  if (c.six_in_parts) {
    // Two bits of each byte, from the top down, come together at the top of a word.
    const __m256i two = _mm256_set1_epi32(static_cast<int>(3u << 30));
    const auto top = [&](const uint8_t* from) {
      return _mm256_and_si256(_mm256_sll_epi32(Words(from), left), two);
    };
    w = _mm256_or_si256(_mm256_or_si256(top(p), _mm256_srli_epi32(top(p + 64), 2)),
                        _mm256_srli_epi32(top(p + 128), 4));
  } else {
    w = _mm256_sll_epi32(_mm256_xor_si256(w, _mm256_set1_epi32(static_cast<int>(c.flip))), left);
  }
  w = c.is_signed ? _mm256_sra_epi32(w, right) : _mm256_srl_epi32(w, right);
  if (c.levels == Levels::kNone) return _mm256_cvtepi32_ps(w);
  if (c.levels == Levels::kIq4) {
    const __m256 lower = _mm256_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10),
                 upper = _mm256_setr_ps(1, 13, 25, 38, 53, 69, 89, 113);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(lower, w), _mm256_permutevar8x32_ps(upper, w),
                            _mm256_castsi256_ps(_mm256_slli_epi32(w, 28)));
  }
  // Magnitudes by the lower three bits, and bit 3 is the sign.
  const __m256 magnitude = _mm256_permutevar8x32_ps(_mm256_setr_ps(0, 1, 2, 3, 4, 6, 8, 12), w);
  return _mm256_xor_ps(magnitude, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(w, 3), 31)));
}

// Eight of the sixteen rows, from r on. Minima of several sub-blocks do not stand together on x86.
inline __m256 Column(const PackedColumn& c, const uint8_t* group, int r) {
  __m256 scale = c.wide_scale ? _mm256_loadu_ps(reinterpret_cast<const float*>(group + c.scale) + r)
                              : Halves(group + c.scale + 2 * r);
  if (c.sub_scale >= 0) scale = _mm256_mul_ps(scale, SignedBytes(group + c.sub_scale + r));
  const __m256 v = _mm256_mul_ps(Values(c, group + c.values + 4 * r), scale);
  if (c.min < 0) return v;
  const __m256 min = Halves(group + c.min + 2 * r);
  return c.sub_min < 0 ? _mm256_add_ps(v, min)
                       : _mm256_fnmadd_ps(min, UnsignedBytes(group + c.sub_min + r), v);
}

void Add(const PackedColumn* columns, const float* values, int count, const uint8_t* group, int64_t bytes,
         int groups, float* sums) {
  for (int g = 0; g < groups; ++g, group += bytes, sums += 16)
    for (int r = 0; r < 16; r += 8) {
      __m256 sum = _mm256_loadu_ps(sums + r);
      for (int i = 0; i < count; ++i)
        sum = _mm256_fmadd_ps(_mm256_set1_ps(values[i]), Column(columns[i], group, r), sum);
      _mm256_storeu_ps(sums + r, sum);
    }
}

void Read(const PackedColumn* columns, int count, const uint8_t* group, int64_t bytes, int groups,
          float* out) {
  for (int g = 0; g < groups; ++g, group += bytes)
    for (int i = 0; i < count; ++i, out += 16)
      for (int r = 0; r < 16; r += 8) _mm256_storeu_ps(out + r, Column(columns[i], group, r));
}

void AddRead(const float* columns, const uint16_t* slots, const TokenOutliers* outliers, int tokens,
             float* sums, int64_t stride) {
  for (int t = 0; t < tokens; ++t, slots += kOutliers, sums += stride)
    for (int r = 0; r < 16; r += 8) {
      __m256 sum = _mm256_loadu_ps(sums + r);
      for (int i = 0; i < outliers[t].count; ++i)
        sum = _mm256_fmadd_ps(_mm256_set1_ps(outliers[t].value[i]),
                              _mm256_loadu_ps(columns + 16 * slots[i] + r), sum);
      _mm256_storeu_ps(sums + r, sum);
    }
}

}  // namespace

const ColumnKernels kColumnsAvx2 = {Add, Read, AddRead};

}  // namespace celer::x86
