// Tiles over f16 and int8 KV in f16 arithmetic, up to 32 queries per instruction.
#include "kernels/attention/attention_columns.h"
#include "kernels/attention/attention_float.h"

namespace celer {
namespace {

// What both widths of H share.
struct HalvesOfRows {
  using Half = _Float16;
  // The first `some` <= 16 elements of a row times two factors, in f16, zeros behind them.
  static CELER_INLINE void Convert16(const float* from, int64_t some, float a, float b, Half* out) {
    const auto mask = static_cast<__mmask16>((1u << some) - 1);
    const __m512 x =
        _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, from), _mm512_set1_ps(a)), _mm512_set1_ps(b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static CELER_INLINE void Transpose8x8(const Half* from, int64_t from_stride, Half* to, int64_t to_stride) {
    __m128i a[8], b[8];
    for (int i = 0; i < 8; ++i)
      a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_stride));
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
      b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      a[4 * i] = _mm_unpacklo_epi32(b[4 * i], b[4 * i + 2]);
      a[4 * i + 1] = _mm_unpackhi_epi32(b[4 * i], b[4 * i + 2]);
      a[4 * i + 2] = _mm_unpacklo_epi32(b[4 * i + 1], b[4 * i + 3]);
      a[4 * i + 3] = _mm_unpackhi_epi32(b[4 * i + 1], b[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = _mm_unpacklo_epi64(a[i], a[i + 4]);
      b[2 * i + 1] = _mm_unpackhi_epi64(a[i], a[i + 4]);
    }
    for (int i = 0; i < 8; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * to_stride), b[i]);
  }
  // The first `rows` columns of `from` become rows of `to`.
  static CELER_INLINE void Transpose4x4(const float* from, int64_t from_stride, float* to, int64_t to_stride,
                                        int64_t rows) {
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_stride);
    __m128 c = _mm_loadu_ps(from + 2 * from_stride), d = _mm_loadu_ps(from + 3 * from_stride);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    if (rows > 1) _mm_storeu_ps(to + to_stride, b);
    if (rows > 2) _mm_storeu_ps(to + 2 * to_stride, c);
    if (rows > 3) _mm_storeu_ps(to + 3 * to_stride, d);
  }
};

struct Halves32 : HalvesOfRows {
  using V = __m512h;
  struct Sums {
    __m512 low, high;
  };
  static constexpr int64_t kLanes = 32;
  static CELER_INLINE V Load(const Half* p) { return _mm512_loadu_ph(p); }
  static CELER_INLINE void Store(Half* p, V v) { _mm512_storeu_ph(p, v); }
  static CELER_INLINE V Set(float v) { return _mm512_set1_ph(static_cast<Half>(v)); }
  static CELER_INLINE V Add(V a, V b) { return _mm512_add_ph(a, b); }
  static CELER_INLINE V Sub(V a, V b) { return _mm512_sub_ph(a, b); }
  static CELER_INLINE V Mul(V a, V b) { return _mm512_mul_ph(a, b); }
  static CELER_INLINE V Max(V a, V b) { return _mm512_max_ph(a, b); }
  static CELER_INLINE V Fma(V a, V b, V c) { return _mm512_fmadd_ph(a, b, c); }
  static CELER_INLINE V Fnma(V a, V b, V c) { return _mm512_fnmadd_ph(a, b, c); }
  // sum[.][i] += a[.] * the element at b
  template <int kB, int kN>
  static CELER_INLINE void FmaElement(const V (&a)[kB], const uint8_t* b, V (&sum)[kB][kN], int i) {
    const V element = _mm512_set1_ph(*reinterpret_cast<const Half*>(b));
    for (int j = 0; j < kB; ++j) sum[j][i] = _mm512_fmadd_ph(a[j], element, sum[j][i]);
  }
  // The first n elements, zeros behind them.
  static CELER_INLINE V LoadSome(const uint8_t* p, int64_t n) {
    if (n == kLanes) return Load(reinterpret_cast<const Half*>(p));
    const auto mask = static_cast<__mmask32>((uint64_t{1} << n) - 1);
    return _mm512_castsi512_ph(_mm512_maskz_loadu_epi16(mask, p));
  }
  static CELER_INLINE V PowerFromLowBits(V v) {
    return _mm512_castsi512_ph(_mm512_slli_epi16(_mm512_castph_si512(v), 10));
  }
  // v where first <= key <= last, minus infinity elsewhere
  static CELER_INLINE V IfWithin(const int32_t* first, const int32_t* last, int32_t key, V v) {
    const __m512i at = _mm512_set1_epi32(key);
    const auto within = [&](int64_t i) {
      return _mm512_cmple_epi32_mask(_mm512_loadu_si512(first + i), at) &
             _mm512_cmpge_epi32_mask(_mm512_loadu_si512(last + i), at);
    };
    const __mmask32 mask = static_cast<uint32_t>(within(0)) | static_cast<uint32_t>(within(16)) << 16;
    return _mm512_castsi512_ph(_mm512_mask_blend_epi16(mask, _mm512_set1_epi16(static_cast<int16_t>(0xfc00)),
                                                       _mm512_castph_si512(v)));
  }
  static CELER_INLINE __m256i Half0(V v) { return _mm512_castsi512_si256(_mm512_castph_si512(v)); }
  static CELER_INLINE __m256i Half1(V v) { return _mm512_extracti64x4_epi64(_mm512_castph_si512(v), 1); }
  static CELER_INLINE void ToFloats(V v, float* out) {
    _mm512_storeu_ps(out, _mm512_cvtph_ps(Half0(v)));
    _mm512_storeu_ps(out + 16, _mm512_cvtph_ps(Half1(v)));
  }
  static CELER_INLINE Sums NoSums() { return {_mm512_setzero_ps(), _mm512_setzero_ps()}; }
  static CELER_INLINE void AddTo(Sums& sums, V v) {
    sums.low = _mm512_add_ps(sums.low, _mm512_cvtph_ps(Half0(v)));
    sums.high = _mm512_add_ps(sums.high, _mm512_cvtph_ps(Half1(v)));
  }
  // acc = acc * by + sums
  static CELER_INLINE void Accumulate(float* acc, const Sums& by, const Sums& sums) {
    _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_loadu_ps(acc), by.low, sums.low));
    _mm512_storeu_ps(acc + 16, _mm512_fmadd_ps(_mm512_loadu_ps(acc + 16), by.high, sums.high));
  }
  static CELER_INLINE Sums LoadSums(const float* p) { return {_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16)}; }
  static CELER_INLINE Sums SetSums(float v) { return {_mm512_set1_ps(v), _mm512_set1_ps(v)}; }
};

struct Halves16 : HalvesOfRows {
  using V = __m256h;
  using Wide = Halves32;
  using Narrow = Halves16;
  using Sums = __m512;
  static constexpr int64_t kLanes = 16;
  static CELER_INLINE V Load(const Half* p) { return _mm256_loadu_ph(p); }
  static CELER_INLINE void Store(Half* p, V v) { _mm256_storeu_ph(p, v); }
  static CELER_INLINE V Set(float v) { return _mm256_set1_ph(static_cast<Half>(v)); }
  static CELER_INLINE V Add(V a, V b) { return _mm256_add_ph(a, b); }
  static CELER_INLINE V Sub(V a, V b) { return _mm256_sub_ph(a, b); }
  static CELER_INLINE V Mul(V a, V b) { return _mm256_mul_ph(a, b); }
  static CELER_INLINE V Max(V a, V b) { return _mm256_max_ph(a, b); }
  static CELER_INLINE V Fma(V a, V b, V c) { return _mm256_fmadd_ph(a, b, c); }
  static CELER_INLINE V Fnma(V a, V b, V c) { return _mm256_fnmadd_ph(a, b, c); }
  template <int kB, int kN>
  static CELER_INLINE void FmaElement(const V (&a)[kB], const uint8_t* b, V (&sum)[kB][kN], int i) {
    const V element = _mm256_set1_ph(*reinterpret_cast<const Half*>(b));
    for (int j = 0; j < kB; ++j) sum[j][i] = _mm256_fmadd_ph(a[j], element, sum[j][i]);
  }
  // The first n elements, zeros behind them.
  static CELER_INLINE V LoadSome(const uint8_t* p, int64_t n) {
    if (n == kLanes) return Load(reinterpret_cast<const Half*>(p));
    const auto mask = static_cast<__mmask16>((uint64_t{1} << n) - 1);
    return _mm256_castsi256_ph(_mm256_maskz_loadu_epi16(mask, p));
  }
  static CELER_INLINE V PowerFromLowBits(V v) {
    return _mm256_castsi256_ph(_mm256_slli_epi16(_mm256_castph_si256(v), 10));
  }
  static CELER_INLINE V IfWithin(const int32_t* first, const int32_t* last, int32_t key, V v) {
    const __m512i at = _mm512_set1_epi32(key);
    const __mmask16 mask = static_cast<__mmask16>(_mm512_cmple_epi32_mask(_mm512_loadu_si512(first), at) &
                                                  _mm512_cmpge_epi32_mask(_mm512_loadu_si512(last), at));
    return _mm256_castsi256_ph(_mm256_mask_blend_epi16(mask, _mm256_set1_epi16(static_cast<int16_t>(0xfc00)),
                                                       _mm256_castph_si256(v)));
  }
  static CELER_INLINE void ToFloats(V v, float* out) {
    _mm512_storeu_ps(out, _mm512_cvtph_ps(_mm256_castph_si256(v)));
  }
  static CELER_INLINE Sums NoSums() { return _mm512_setzero_ps(); }
  static CELER_INLINE void AddTo(Sums& sums, V v) {
    sums = _mm512_add_ps(sums, _mm512_cvtph_ps(_mm256_castph_si256(v)));
  }
  static CELER_INLINE void Accumulate(float* acc, Sums by, Sums sums) {
    _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_loadu_ps(acc), by, sums));
  }
  static CELER_INLINE Sums LoadSums(const float* p) { return _mm512_loadu_ps(p); }
  static CELER_INLINE Sums SetSums(float v) { return _mm512_set1_ps(v); }
};

template <bool kInt8>
void AttendColumns(const AttentionTile& tile) {
  if (tile.tokens * tile.group <= Halves16::kLanes) return ColumnsTile<Halves16, kInt8, true>(tile).Run();
  ColumnsTile<Halves32, kInt8, false>(tile).Run();
}

}  // namespace

void x86::AttendTileAvx512Fp16(const AttentionTile& tile) {
  if (tile.kind == KvKind::kF16) return AttendColumns<false>(tile);
  if (tile.kind == KvKind::kI8) return AttendColumns<true>(tile);
  AttendTileFloat(tile);
}

}  // namespace celer
