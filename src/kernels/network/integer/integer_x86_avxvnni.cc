// vpdpbusd: dot products of four bytes in registers of 256 bits; x is unsigned, so that signed bytes become x
// + 128. The register tile is six rows by 16 columns.
#include "kernels/network/integer/integer_avx.h"

namespace celer {
namespace {

constexpr int kRows = 6, kDepth = 4;

inline __m256i Four(const uint8_t* from, __m256i flip) {
  int32_t four;
  memcpy(&four, from, sizeof four);
  return _mm256_xor_si256(_mm256_set1_epi32(four), flip);
}

// In place: GCC 12 copies the sums to other registers and back at every step of a loop.
inline void AddDot(__m256i& sum, __m256i x, __m256i w) {
#if defined(__GNUC__) && defined(__x86_64__)
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
#else
  sum = _mm256_dpbusd_avx_epi32(sum, x, w);
#endif
}

template <int kCount>
inline void Rows(const IntegerTile& t, int64_t row, __m256i flip, const Columns (&columns)[2]) {
  __m256i sum[kCount][2];
  for (int i = 0; i < kCount; ++i)
    for (int j = 0; j < 2; ++j) sum[i][j] = Load(t.to.bias + 8 * j);
  const uint8_t* const x = t.x + row * t.x_stride;
  const int8_t* w = t.w;
  for (int64_t k = 0; k < t.k; k += 4, w += 64) {
    const __m256i w0 = Load(w), w1 = Load(w + 32);
    for (int i = 0; i < kCount; ++i) {
      const __m256i a = Four(x + i * t.x_stride + k, flip);
      AddDot(sum[i][0], a, w0);
      AddDot(sum[i][1], a, w1);
    }
  }
  // Through memory: a loop over an array of registers would keep them there all the time.
  __m256i done[kCount][2];
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i)
    for (int j = 0; j < 2; ++j) _mm256_store_si256(&done[i][j], sum[i][j]);
#pragma GCC unroll 1
  for (int i = 0; i < kCount; ++i) StoreRow(t, row + i, done[i][0], done[i][1], columns);
}

uint8_t FlipOf(bool is_signed) {
  return is_signed ? 0x80 : 0;
}

void Tile(const IntegerTile& t) {
  const Columns columns[2] = {{t.to, 0}, {t.to, 8}};
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(FlipOf(t.x_signed)));
  int64_t row = 0;
  for (; row + kRows <= t.rows; row += kRows) Rows<kRows>(t, row, flip, columns);
  for (; row + 3 <= t.rows; row += 3) Rows<3>(t, row, flip, columns);
  for (; row < t.rows; ++row) Rows<1>(t, row, flip, columns);
}

// Four kernel rows of one column of 16 channels: the four rows of a channel together.
inline void Interleave(const uint8_t* const (&rows)[kDepth], uint8_t* to, __m128i flip) {
  const __m128i a = _mm_xor_si128(LoadHalf(rows[0]), flip), b = _mm_xor_si128(LoadHalf(rows[1]), flip),
                c = _mm_xor_si128(LoadHalf(rows[2]), flip), e = _mm_xor_si128(LoadHalf(rows[3]), flip);
  const __m128i low[2] = {_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, e)},
                high[2] = {_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, e)};
  auto* const out = reinterpret_cast<__m128i*>(to);
  _mm_store_si128(out, _mm_unpacklo_epi16(low[0], low[1]));
  _mm_store_si128(out + 1, _mm_unpackhi_epi16(low[0], low[1]));
  _mm_store_si128(out + 2, _mm_unpacklo_epi16(high[0], high[1]));
  _mm_store_si128(out + 3, _mm_unpackhi_epi16(high[0], high[1]));
}

template <int kW, int kGroups>
inline void DepthwiseBlock(const IntegerDepthwise& d, int64_t channel, int64_t lanes) {
  const int64_t kernel_w = kW ? kW : d.kernel_w, groups = kGroups ? kGroups : (d.kernel_h + 3) / kDepth;
  const int64_t step = groups * 64, dilation = d.dilation_w * step;
  const int8_t* const weights = d.weights + channel / kDepthBlock * groups * kernel_w * 64;
  const Columns columns[2] = {{d.to, channel}, {d.to, channel + 8}};
  const int32_t* const bias = d.to.bias + channel;
  for (int64_t ox = 0; ox < d.out_w; ++ox) {
    const uint8_t* const x = d.scratch + ox * d.stride_w * step;
    __m256i sum[2] = {Load(bias), Load(bias + 8)};
    const int8_t* w = weights;
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t kx = 0; kx < kernel_w; ++kx, w += 64) {
        const uint8_t* const at = x + kx * dilation + g * 64;
        sum[0] = _mm256_dpbusd_avx_epi32(sum[0], Load(at), Load(w));
        sum[1] = _mm256_dpbusd_avx_epi32(sum[1], Load(at + 32), Load(w + 32));
      }
    const __m256i y = _mm256_packs_epi32(columns[0].Scale(sum[0]), columns[1].Scale(sum[1]));
    StoreBytes(d.out + ox * d.channels + channel, ClampToBytes(_mm256_permute4x64_epi64(y, 0xd8), d.to.range),
               lanes);
  }
}

void Depthwise(const IntegerDepthwise& d) {
  const __m128i flip = _mm_set1_epi8(static_cast<char>(FlipOf(d.x_signed)));
  EachDepthBlock<kDepth>(d, [&]<int kW, int kGroups>(int64_t channel, int64_t lanes) {
    GatherColumns<kDepth>(d, channel, lanes, [&](const uint8_t* const(&rows)[kDepth], uint8_t* to) {
      Interleave(rows, to, flip);
    });
    DepthwiseBlock<kW, kGroups>(d, channel, lanes);
  });
}

}  // namespace

const IntegerKernels kIntegerX86AvxVnni = {.name = "x86_avxvnni",
                                           .byte_products = 64,
                                           .cols = 16,
                                           .step = 4,
                                           .signed_offset = 128,
                                           .tile = Tile,
                                           .depth_rows = kDepth,
                                           .depthwise = Depthwise,
                                           .add = RunAdd};

}  // namespace celer
