// One vector register of 32-bit lanes with what the x86 tile kernels need of it: AVX-512 where the including
// file's flags allow, else AVX2. A row group of sixteen fills one register, or two ("parts").
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define CELER_X86_INLINE inline __attribute__((always_inline))

namespace celer::x86 {
namespace {

template <int kN>
struct Const {
  static constexpr int value = kN;
  constexpr operator int() const { return kN; }
};
// f(Const<0>), ..., f(Const<kN - 1>), written out: what f indexes stays in registers.
template <int kN, int kI = 0, class F>
CELER_X86_INLINE void For(const F& f) {
  if constexpr (kI < kN) {
    f(Const<kI>{});
    For<kN, kI + 1>(f);
  }
}
#define CELER_EACH(name) [&](auto name) __attribute__((always_inline))

#if defined(__AVX512F__)

constexpr int kLanes = 16;
using VecF = __m512;
using VecI = __m512i;

CELER_X86_INLINE VecF ZeroF() {
  return _mm512_setzero_ps();
}
CELER_X86_INLINE VecI ZeroI() {
  return _mm512_setzero_si512();
}
CELER_X86_INLINE VecF SetF(float v) {
  return _mm512_set1_ps(v);
}
CELER_X86_INLINE VecI SetI(int32_t v) {
  return _mm512_set1_epi32(v);
}
CELER_X86_INLINE VecI SetByte(int v) {
  return _mm512_set1_epi8(static_cast<char>(v));
}
// Each byte's lower half as an index.
CELER_X86_INLINE VecI LookUp(__m128i table, VecI index) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index);
}
CELER_X86_INLINE VecF LoadF(const float* p) {
  return _mm512_loadu_ps(p);
}
CELER_X86_INLINE void StoreF(float* p, VecF v) {
  _mm512_storeu_ps(p, v);
}
CELER_X86_INLINE VecI LoadI(const void* p) {
  return _mm512_loadu_si512(p);
}
CELER_X86_INLINE void StoreI(void* p, VecI v) {
  _mm512_storeu_si512(p, v);
}
CELER_X86_INLINE VecF Add(VecF a, VecF b) {
  return _mm512_add_ps(a, b);
}
CELER_X86_INLINE VecF Mul(VecF a, VecF b) {
  return _mm512_mul_ps(a, b);
}
CELER_X86_INLINE VecF Fma(VecF a, VecF b, VecF c) {
  return _mm512_fmadd_ps(a, b, c);
}
CELER_X86_INLINE VecF Fnma(VecF a, VecF b, VecF c) {
  return _mm512_fnmadd_ps(a, b, c);
}
CELER_X86_INLINE VecF ToFloat(VecI v) {
  return _mm512_cvtepi32_ps(v);
}
CELER_X86_INLINE VecI And(VecI a, VecI b) {
  return _mm512_and_si512(a, b);
}
CELER_X86_INLINE VecI Or(VecI a, VecI b) {
  return _mm512_or_si512(a, b);
}
CELER_X86_INLINE VecI Xor(VecI a, VecI b) {
  return _mm512_xor_si512(a, b);
}
CELER_X86_INLINE VecI SubBytes(VecI a, VecI b) {
  return _mm512_sub_epi8(a, b);
}
CELER_X86_INLINE VecI ToNearest(VecF v) {
  return _mm512_cvtps_epi32(v);
}
CELER_X86_INLINE VecI AddI(VecI a, VecI b) {
  return _mm512_add_epi32(a, b);
}
CELER_X86_INLINE VecI SubI(VecI a, VecI b) {
  return _mm512_sub_epi32(a, b);
}
template <int kBits>
CELER_X86_INLINE VecI ShiftRightSigned32(VecI v) {
  return _mm512_srai_epi32(v, kBits);
}
template <int kBits>
CELER_X86_INLINE VecI ShiftRight16(VecI v) {
  return _mm512_srli_epi16(v, kBits);
}
template <int kBits>
CELER_X86_INLINE VecI ShiftLeft32(VecI v) {
  return _mm512_slli_epi32(v, kBits);
}
// kLanes values each
CELER_X86_INLINE VecF LoadHalves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
CELER_X86_INLINE VecF LoadBrains(const uint8_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
CELER_X86_INLINE VecI LoadS8(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
CELER_X86_INLINE VecI LoadU8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

#else

constexpr int kLanes = 8;
using VecF = __m256;
using VecI = __m256i;

CELER_X86_INLINE VecF ZeroF() {
  return _mm256_setzero_ps();
}
CELER_X86_INLINE VecI ZeroI() {
  return _mm256_setzero_si256();
}
CELER_X86_INLINE VecF SetF(float v) {
  return _mm256_set1_ps(v);
}
CELER_X86_INLINE VecI SetI(int32_t v) {
  return _mm256_set1_epi32(v);
}
CELER_X86_INLINE VecI SetByte(int v) {
  return _mm256_set1_epi8(static_cast<char>(v));
}
CELER_X86_INLINE VecI LookUp(__m128i table, VecI index) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index);
}
CELER_X86_INLINE VecF LoadF(const float* p) {
  return _mm256_loadu_ps(p);
}
CELER_X86_INLINE void StoreF(float* p, VecF v) {
  _mm256_storeu_ps(p, v);
}
CELER_X86_INLINE VecI LoadI(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
CELER_X86_INLINE void StoreI(void* p, VecI v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
CELER_X86_INLINE VecF Add(VecF a, VecF b) {
  return _mm256_add_ps(a, b);
}
CELER_X86_INLINE VecF Mul(VecF a, VecF b) {
  return _mm256_mul_ps(a, b);
}
CELER_X86_INLINE VecF Fma(VecF a, VecF b, VecF c) {
  return _mm256_fmadd_ps(a, b, c);
}
CELER_X86_INLINE VecF Fnma(VecF a, VecF b, VecF c) {
  return _mm256_fnmadd_ps(a, b, c);
}
CELER_X86_INLINE VecF ToFloat(VecI v) {
  return _mm256_cvtepi32_ps(v);
}
CELER_X86_INLINE VecI And(VecI a, VecI b) {
  return _mm256_and_si256(a, b);
}
CELER_X86_INLINE VecI Or(VecI a, VecI b) {
  return _mm256_or_si256(a, b);
}
CELER_X86_INLINE VecI Xor(VecI a, VecI b) {
  return _mm256_xor_si256(a, b);
}
CELER_X86_INLINE VecI ToNearest(VecF v) {
  return _mm256_cvtps_epi32(v);
}
CELER_X86_INLINE VecI AddI(VecI a, VecI b) {
  return _mm256_add_epi32(a, b);
}
CELER_X86_INLINE VecI SubI(VecI a, VecI b) {
  return _mm256_sub_epi32(a, b);
}
template <int kBits>
CELER_X86_INLINE VecI ShiftRightSigned32(VecI v) {
  return _mm256_srai_epi32(v, kBits);
}
template <int kBits>
CELER_X86_INLINE VecI ShiftRight16(VecI v) {
  return _mm256_srli_epi16(v, kBits);
}
template <int kBits>
CELER_X86_INLINE VecI ShiftLeft32(VecI v) {
  return _mm256_slli_epi32(v, kBits);
}
CELER_X86_INLINE VecF LoadHalves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
CELER_X86_INLINE VecF LoadBrains(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
CELER_X86_INLINE VecI LoadS8(const uint8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
CELER_X86_INLINE VecI LoadU8(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

#endif

constexpr int kRows = 16;
constexpr int kParts = kRows / kLanes;

// The same four bytes in every lane.
CELER_X86_INLINE VecI SetFour(const void* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return SetI(four);
}

}  // namespace
}  // namespace celer::x86
