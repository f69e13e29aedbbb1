// What the x86 kernels share: requantization in registers of 256 bits, and sums of two tensors.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "kernels/network/integer/integer_columns.h"
#include "kernels/network/integer/integer_kernels.h"

namespace celer {
namespace {

// The requantization of eight columns; [from, from + 4) and [second, second + 4).
struct Columns {
  __m256i multiplier, left, right;
  bool shifts = false;  // some `left` is not 0, which is rare

  Columns() = default;
  // Raw accumulators have no multipliers.
  Columns(const Requantize& to, int64_t from, int64_t second) {
    if (!to.multiplier) return;
    multiplier = Halves(to.multiplier + from, to.multiplier + second);
    left = Halves(to.left + from, to.left + second);
    right = Halves(to.right + from, to.right + second);
    shifts = !_mm256_testz_si256(left, left);
  }
  Columns(const Requantize& to, int64_t from) : Columns(to, from, from + 4) {}

  static __m256i Halves(const int32_t* low, const int32_t* high) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
  }

  __m256i Scale(__m256i sum) const {
    if (shifts) {  // to the left, as far as 32 bits go
      const __m256i shifted = _mm256_sllv_epi32(sum, left);
      const __m256i same = _mm256_cmpeq_epi32(_mm256_srav_epi32(shifted, left), sum);
      const __m256i end = _mm256_xor_si256(_mm256_srai_epi32(sum, 31), _mm256_set1_epi32(INT32_MAX));
      sum = _mm256_blendv_epi8(end, shifted, same);
    }
    // Of products of 64 bits, those from bit 31 on: they fit 32 bits, since multipliers are below 2^31.
    const __m256i even = _mm256_mul_epi32(sum, multiplier);
    const __m256i odd = _mm256_mul_epi32(_mm256_srli_epi64(sum, 32), _mm256_srli_epi64(multiplier, 32));
    const __m256i product = _mm256_blend_epi32(_mm256_srli_epi64(even, 31), _mm256_add_epi64(odd, odd), 0xaa);
    // Rounding: half a step is the last bit that is shifted out; adding it afterwards cannot overflow.
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i half = _mm256_and_si256(_mm256_srav_epi32(product, _mm256_sub_epi32(right, one)), one);
    return _mm256_add_epi32(_mm256_srav_epi32(product, right), half);
  }
};

// 16 values of 16 bits, clamped, as bytes. Saturation to 16 bits is far outside of any range of bytes.
inline __m128i ClampToBytes(__m256i values, const ByteRange& range) {
  __m256i y = _mm256_adds_epi16(values, _mm256_set1_epi16(static_cast<int16_t>(range.zero)));
  y = _mm256_max_epi16(y, _mm256_set1_epi16(static_cast<int16_t>(range.low)));
  y = _mm256_min_epi16(y, _mm256_set1_epi16(static_cast<int16_t>(range.high)));
  y = _mm256_and_si256(y, _mm256_set1_epi16(255));
  return _mm_packus_epi16(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}

inline void StoreBytes(uint8_t* to, __m128i bytes, int64_t count) {
  if (count >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    return;
  }
  alignas(16) uint8_t some[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(some), bytes);
  memcpy(to, some, static_cast<size_t>(count));
}

// One row of a tile of 16 columns.
inline void StoreRow(const IntegerTile& t, int64_t row, __m256i low, __m256i high,
                     const Columns (&columns)[2]) {
  if (t.out) {
    const __m256i y = _mm256_packs_epi32(columns[0].Scale(low), columns[1].Scale(high));
    StoreBytes(t.out + row * t.out_stride, ClampToBytes(_mm256_permute4x64_epi64(y, 0xd8), t.to.range),
               t.cols);
    return;
  }
  alignas(32) int32_t some[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(some), low);
  _mm256_store_si256(reinterpret_cast<__m256i*>(some + 8), high);
  memcpy(t.sums + row * t.out_stride, some, static_cast<size_t>(t.cols) * sizeof(int32_t));
}

inline __m256i Load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline __m128i LoadHalf(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

inline __m256i Widen(__m128i bytes, bool is_signed) {
  return is_signed ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
}

inline void RunAdd(const AddBytes& add) {
  // Pairs of an element of a and one of b, times a pair of factors.
  const __m256i factors = _mm256_set1_epi32(static_cast<int32_t>((static_cast<uint32_t>(add.b_factor) << 16) |
                                                                 static_cast<uint32_t>(add.a_factor)));
  const __m256i start = _mm256_set1_epi32(add.start);
  const __m128i shift = _mm_cvtsi32_si128(add.shift);
  const auto sixteen = [&](__m128i x, __m128i y) {
    const __m256i a = Widen(x, add.a_signed), b = Widen(y, add.b_signed);
    __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), factors),
            high = _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), factors);
    low = _mm256_sra_epi32(_mm256_add_epi32(low, start), shift);
    high = _mm256_sra_epi32(_mm256_add_epi32(high, start), shift);
    return ClampToBytes(_mm256_packs_epi32(low, high), add.range);
  };
  int64_t i = 0;
  for (; i + 16 <= add.n; i += 16)
    StoreBytes(add.out + i, sixteen(LoadHalf(add.a + i), LoadHalf(add.b + i)), 16);
  if (i == add.n) return;
  const auto rest = static_cast<size_t>(add.n - i);
  uint8_t a[16] = {}, b[16] = {};
  memcpy(a, add.a + i, rest);
  memcpy(b, add.b + i, rest);
  StoreBytes(add.out + i, sixteen(LoadHalf(a), LoadHalf(b)), add.n - i);
}

}  // namespace
}  // namespace celer
