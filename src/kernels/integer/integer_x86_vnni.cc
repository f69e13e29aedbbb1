// Dot products of four bytes, without a sign on the left: bytes with one become x + 128. A tile is twelve
// rows by sixteen columns; rows of depthwise convolutions, and sums of two tensors, are those of 512-bit
// registers too.
#include <immintrin.h>
#include <string.h>

#include "kernels/integer/integer_kernels.h"

namespace celer {
namespace {

// floor((saturate(sum << left) * multiplier + half) / 2^(31 + right)), for eight of the sixteen lanes at a
// time.
inline __m512i Scale(__m512i sum, __m512i multiplier, __m512i left, __m512i right) {
  const auto half = [&](__m256i s, __m256i m, __m256i l, __m256i r) {
    __m512i wide = _mm512_sllv_epi64(_mm512_cvtepi32_epi64(s), _mm512_cvtepi32_epi64(l));
    wide =
        _mm512_min_epi64(_mm512_max_epi64(wide, _mm512_set1_epi64(INT32_MIN)), _mm512_set1_epi64(INT32_MAX));
    const __m512i by = _mm512_cvtepi32_epi64(r);
    const __m512i product = _mm512_mul_epi32(wide, _mm512_cvtepi32_epi64(m));
    const __m512i up = _mm512_sllv_epi64(_mm512_set1_epi64(1), _mm512_add_epi64(by, _mm512_set1_epi64(30)));
    return _mm512_cvtepi64_epi32(
        _mm512_srav_epi64(_mm512_add_epi64(product, up), _mm512_add_epi64(by, _mm512_set1_epi64(31))));
  };
  const __m256i low = half(_mm512_castsi512_si256(sum), _mm512_castsi512_si256(multiplier),
                           _mm512_castsi512_si256(left), _mm512_castsi512_si256(right));
  const __m256i high = half(_mm512_extracti64x4_epi64(sum, 1), _mm512_extracti64x4_epi64(multiplier, 1),
                            _mm512_extracti64x4_epi64(left, 1), _mm512_extracti64x4_epi64(right, 1));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Scaled sums are far from the ends of 32 bits after the clamp below, which comes before the zero point is
// added.
inline __m128i Bytes(__m512i scaled, const ByteRange& range) {
  __m512i y =
      _mm512_max_epi32(_mm512_min_epi32(scaled, _mm512_set1_epi32(1 << 20)), _mm512_set1_epi32(-(1 << 20)));
  y = _mm512_add_epi32(y, _mm512_set1_epi32(range.zero));
  y = _mm512_min_epi32(_mm512_max_epi32(y, _mm512_set1_epi32(range.low)), _mm512_set1_epi32(range.high));
  return _mm512_cvtepi32_epi8(y);
}

inline __mmask16 MaskOf(int64_t lanes) {
  return static_cast<__mmask16>(lanes >= 16 ? 0xffff : (1 << lanes) - 1);
}

inline __m512i ColumnsAt(const int32_t* from) {
  return _mm512_loadu_si512(from);
}
inline __m128i Requantized(__m512i sum, const Requantize& to, int64_t at) {
  return Bytes(Scale(sum, ColumnsAt(to.multiplier + at), ColumnsAt(to.left + at), ColumnsAt(to.right + at)),
               to.range);
}

template <int kRows>
inline void Rows(const IntegerTile& t, int64_t row, uint32_t flip) {
  const uint8_t* x[kRows];
  __m512i sum[kRows];
  for (int i = 0; i < kRows; ++i) {
    x[i] = t.x + (row + i) * t.x_stride;
    sum[i] = ColumnsAt(t.to.bias);
  }
  const int8_t* w = t.w;
  for (int64_t k = 0; k < t.k; k += 4, w += 64) {
    const __m512i v = _mm512_loadu_si512(w);
    for (int i = 0; i < kRows; ++i) {
      uint32_t four;
      memcpy(&four, x[i] + k, sizeof(four));
      sum[i] = _mm512_dpbusd_epi32(sum[i], _mm512_set1_epi32(static_cast<int>(four ^ flip)), v);
    }
  }
  const __mmask16 mask = MaskOf(t.cols);
  for (int i = 0; i < kRows; ++i) {
    const int64_t at = (row + i) * t.out_stride;
    if (t.out)
      _mm_mask_storeu_epi8(t.out + at, mask, Requantized(sum[i], t.to, 0));
    else
      _mm512_mask_storeu_epi32(t.sums + at, mask, sum[i]);
  }
}

void Tile(const IntegerTile& t) {
  const uint32_t flip = t.x_signed ? 0x80808080u : 0;
  int64_t row = 0;
  for (; row + 12 <= t.rows; row += 12) Rows<12>(t, row, flip);
  for (; row + 4 <= t.rows; row += 4) Rows<4>(t, row, flip);
  for (; row < t.rows; ++row) Rows<1>(t, row, flip);
}

// Four kernel rows of one column of 16 channels, the rows of a channel together.
inline __m512i Column(const IntegerDepthwise& d, int64_t row, int64_t ix, int64_t channel, __mmask16 mask,
                      __m128i flip) {
  const __m128i pad = _mm_set1_epi8(static_cast<char>(d.pad));
  __m512i out = _mm512_setzero_si512();
  for (int i = 0; i < 4; ++i) {
    const bool inside = row + i < d.kernel_h && ix >= 0 && ix < d.in_w && d.in[row + i];
    const __m128i bytes =
        inside ? _mm_maskz_loadu_epi8(mask, d.in[row + i] + ix * d.channels + channel) : pad;
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_xor_si128(bytes, flip));
    out = _mm512_or_si512(out, _mm512_slli_epi32(wide, static_cast<unsigned>(8 * i)));
  }
  return out;
}

void Depthwise(const IntegerDepthwise& d) {
  const int64_t groups = (d.kernel_h + 3) / 4, columns = DepthwiseColumns(d);
  const __m128i flip = _mm_set1_epi8(static_cast<char>(d.x_signed ? 0x80 : 0));
  for (int64_t c = 0; c < d.channels; c += kDepthBlock) {
    const __mmask16 mask = MaskOf(d.channels - c);
    for (int64_t x = 0; x < columns; ++x)
      for (int64_t g = 0; g < groups; ++g)
        _mm512_storeu_si512(d.scratch + (x * groups + g) * 64,
                            Column(d, 4 * g, x - d.pad_left, c, mask, flip));
    const int8_t* const w = d.weights + c / kDepthBlock * groups * d.kernel_w * 64;
    for (int64_t ox = 0; ox < d.out_w; ++ox) {
      __m512i sum = ColumnsAt(d.to.bias + c);
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t kx = 0; kx < d.kernel_w; ++kx)
          sum = _mm512_dpbusd_epi32(
              sum, _mm512_loadu_si512(d.scratch + ((ox * d.stride_w + kx * d.dilation_w) * groups + g) * 64),
              _mm512_loadu_si512(w + (g * d.kernel_w + kx) * 64));
      _mm_mask_storeu_epi8(d.out + ox * d.channels + c, mask, Requantized(sum, d.to, c));
    }
  }
}

inline __m512i Widen(__m128i bytes, bool is_signed) {
  return is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
}

void Add(const AddBytes& add) {
  for (int64_t i = 0; i < add.n; i += 16) {
    const __mmask16 mask = MaskOf(add.n - i);
    const __m512i a = Widen(_mm_maskz_loadu_epi8(mask, add.a + i), add.a_signed),
                  b = Widen(_mm_maskz_loadu_epi8(mask, add.b + i), add.b_signed);
    const __m512i sum =
        _mm512_add_epi32(_mm512_add_epi32(_mm512_mullo_epi32(a, _mm512_set1_epi32(add.a_factor)),
                                          _mm512_mullo_epi32(b, _mm512_set1_epi32(add.b_factor))),
                         _mm512_set1_epi32(add.start));
    const __m512i scaled = _mm512_sra_epi32(sum, _mm_cvtsi32_si128(add.shift));
    _mm_mask_storeu_epi8(add.out + i, mask, Bytes(scaled, add.range));
  }
}

}  // namespace

const IntegerKernels kIntegerX86Vnni = {.name = "x86_vnni",
                                        .cols = 16,
                                        .step = 4,
                                        .signed_offset = 128,
                                        .tile = Tile,
                                        .depth_rows = 4,
                                        .depthwise = Depthwise,
                                        .add = Add};

}  // namespace celer
