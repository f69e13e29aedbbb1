// vpdpbusd: dot products of four bytes in registers of 512 bits; x is unsigned, so that signed bytes become x
// + 128. The register tile is twelve rows by 32 columns: 24 accumulators of 32 registers.
#include "kernels/network/integer/integer_avx.h"

namespace celer {
namespace {

constexpr int kRows = 12, kDepth = 4;

inline __m512i LoadWide(const void* from) {
  return _mm512_loadu_si512(from);
}
inline __mmask16 FirstLanes(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1 << count) - 1);
}

// The requantization of 16 columns.
struct WideColumns {
  __m512i multiplier, left, right, low, high, zero;
  bool shifts = false;  // some `left` is not 0, which is rare

  // Raw accumulators have no multipliers.
  WideColumns(const Requantize& to, int64_t from) {
    if (!to.multiplier) return;
    multiplier = LoadWide(to.multiplier + from);
    left = LoadWide(to.left + from);
    right = LoadWide(to.right + from);
    low = _mm512_set1_epi32(to.range.low - to.range.zero);
    high = _mm512_set1_epi32(to.range.high - to.range.zero);
    zero = _mm512_set1_epi32(to.range.zero);
    shifts = _mm512_test_epi32_mask(left, left) != 0;
  }

  __m128i Bytes(__m512i sum) const {
    if (shifts) {  // to the left, as far as 32 bits go
      const __m512i shifted = _mm512_sllv_epi32(sum, left);
      const __mmask16 same = _mm512_cmpeq_epi32_mask(_mm512_srav_epi32(shifted, left), sum);
      const __m512i end = _mm512_xor_si512(_mm512_srai_epi32(sum, 31), _mm512_set1_epi32(INT32_MAX));
      sum = _mm512_mask_mov_epi32(end, same, shifted);
    }
    // Of products of 64 bits, those from bit 31 on: they fit 32 bits, since multipliers are below 2^31.
    const __m512i even = _mm512_mul_epi32(sum, multiplier);
    const __m512i odd = _mm512_mul_epi32(_mm512_srli_epi64(sum, 32), _mm512_srli_epi64(multiplier, 32));
    const __m512i product =
        _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 31), 0xaaaa, _mm512_add_epi64(odd, odd));
    // Rounding: half a step is the last bit that is shifted out; adding it afterwards cannot overflow.
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i half = _mm512_and_si512(_mm512_srav_epi32(product, _mm512_sub_epi32(right, one)), one);
    __m512i y = _mm512_add_epi32(_mm512_srav_epi32(product, right), half);
    y = _mm512_min_epi32(_mm512_max_epi32(y, low), high);
    return _mm512_cvtepi32_epi8(_mm512_add_epi32(y, zero));
  }
};

inline __m512i Four(const uint8_t* from) {
  int32_t four;
  memcpy(&four, from, sizeof four);
  return _mm512_set1_epi32(four);
}

// In place: GCC 12 copies the sums to other registers and back at every step of a loop.
inline void AddDot(__m512i& sum, __m512i x, __m512i w) {
#if defined(__GNUC__) && defined(__x86_64__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
#else
  sum = _mm512_dpbusd_epi32(sum, x, w);
#endif
}

// Rows are addressed from every third: so the pointers fit the registers.
template <int kCount, int kVectors, bool kSigned>
inline void Rows(const IntegerTile& t, int64_t row, const WideColumns (&columns)[2]) {
  __m512i sum[kCount][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kCount; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) sum[i][j] = LoadWide(t.to.bias + 16 * j);
  const int64_t stride = t.x_stride;
  const uint8_t* x[(kCount + 2) / 3];
  for (int i = 0; i < (kCount + 2) / 3; ++i) x[i] = t.x + (row + 3 * i) * stride;
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
  const int8_t* w = t.w;
  for (int64_t k = 0; k < t.k; k += 4, w += 128) {
    __m512i v[kVectors];
    for (int j = 0; j < kVectors; ++j) v[j] = LoadWide(w + 64 * j);
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
      __m512i a = Four(x[i / 3] + i % 3 * stride + k);
      if (kSigned) a = _mm512_xor_si512(a, flip);
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) AddDot(sum[i][j], a, v[j]);
    }
  }
  // Through memory: a loop over an array of registers would keep them there all the time.
  __m512i done[kCount][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kCount; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) _mm512_store_si512(&done[i][j], sum[i][j]);
#pragma GCC unroll 1
  for (int i = 0; i < kCount; ++i)
    for (int j = 0; j < kVectors; ++j) {
      const int64_t at = (row + i) * t.out_stride + 16 * j;
      const __mmask16 lanes = FirstLanes(t.cols - 16 * j);
      if (t.out)
        _mm_mask_storeu_epi8(t.out + at, lanes, columns[j].Bytes(done[i][j]));
      else
        _mm512_mask_storeu_epi32(t.sums + at, lanes, done[i][j]);
    }
}

template <int kVectors, bool kSigned>
inline void AllRows(const IntegerTile& t) {
  const WideColumns columns[2] = {{t.to, 0}, {t.to, 16}};
  int64_t row = 0;
  for (; row + kRows <= t.rows; row += kRows) Rows<kRows, kVectors, kSigned>(t, row, columns);
  for (; row + 6 <= t.rows; row += 6) Rows<6, kVectors, kSigned>(t, row, columns);
  for (; row + 3 <= t.rows; row += 3) Rows<3, kVectors, kSigned>(t, row, columns);
  for (; row < t.rows; ++row) Rows<1, kVectors, kSigned>(t, row, columns);
}

void Tile(const IntegerTile& t) {
  if (t.x_signed)
    t.cols > 16 ? AllRows<2, true>(t) : AllRows<1, true>(t);
  else
    t.cols > 16 ? AllRows<2, false>(t) : AllRows<1, false>(t);
}

// Four kernel rows of one column of 16 channels, the four rows of a channel together.
inline void Interleave(const uint8_t* const (&rows)[kDepth], uint8_t* to, __m512i flip) {
  const __m512i a = _mm512_cvtepu8_epi32(LoadHalf(rows[0])), b = _mm512_cvtepu8_epi32(LoadHalf(rows[1])),
                c = _mm512_cvtepu8_epi32(LoadHalf(rows[2])), e = _mm512_cvtepu8_epi32(LoadHalf(rows[3]));
  const __m512i low = _mm512_or_si512(a, _mm512_slli_epi32(b, 8)),
                high = _mm512_or_si512(_mm512_slli_epi32(c, 16), _mm512_slli_epi32(e, 24));
  _mm512_store_si512(to, _mm512_xor_si512(_mm512_or_si512(low, high), flip));
}

template <int kW, int kGroups>
inline void DepthwiseBlock(const IntegerDepthwise& d, int64_t channel, int64_t lanes) {
  const int64_t kernel_w = kW ? kW : d.kernel_w, groups = kGroups ? kGroups : (d.kernel_h + 3) / kDepth;
  const int64_t step = groups * 64, dilation = d.dilation_w * step;
  const int8_t* const weights = d.weights + channel / kDepthBlock * groups * kernel_w * 64;
  const WideColumns columns(d.to, channel);
  const __m512i bias = LoadWide(d.to.bias + channel);
  const __mmask16 mask = FirstLanes(lanes);
  for (int64_t ox = 0; ox < d.out_w; ++ox) {
    const uint8_t* const x = d.scratch + ox * d.stride_w * step;
    __m512i sum = bias;
    const int8_t* w = weights;
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t kx = 0; kx < kernel_w; ++kx, w += 64)
        sum = _mm512_dpbusd_epi32(sum, LoadWide(x + kx * dilation + g * 64), LoadWide(w));
    _mm_mask_storeu_epi8(d.out + ox * d.channels + channel, mask, columns.Bytes(sum));
  }
}

void Depthwise(const IntegerDepthwise& d) {
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(d.x_signed ? 0x80 : 0));
  EachDepthBlock<kDepth>(d, [&]<int kW, int kGroups>(int64_t channel, int64_t lanes) {
    GatherColumns<kDepth>(d, channel, lanes, [&](const uint8_t* const(&rows)[kDepth], uint8_t* to) {
      Interleave(rows, to, flip);
    });
    DepthwiseBlock<kW, kGroups>(d, channel, lanes);
  });
}

}  // namespace

const IntegerKernels kIntegerX86Vnni = {.name = "x86_vnni",
                                        .byte_products = 128,
                                        .cols = 32,
                                        .step = 4,
                                        .signed_offset = 128,
                                        .tile = Tile,
                                        .depth_rows = kDepth,
                                        .depthwise = Depthwise,
                                        .add = RunAdd};

}  // namespace celer
