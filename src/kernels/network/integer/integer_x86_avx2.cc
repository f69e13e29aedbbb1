// Without dot products of bytes: both sides are widened to 16 bits, where vpmaddwd sums two products without
// ever saturating. The register tile is six rows by 16 columns. Rows are widened once into a small block,
// from which pairs are broadcast.
#include "kernels/network/integer/integer_avx.h"

namespace celer {
namespace {

constexpr int kRows = 6;
constexpr int64_t kBlock = 256;  // bytes of a row at a time: the widened rows stay in the first cache

struct Widened {
  alignas(32) int16_t x[kRows][kBlock];

  void Fill(const IntegerTile& t, int64_t row, int64_t rows, int64_t from, int64_t count) {
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* const at = t.x + (row + r) * t.x_stride + from;
      for (int64_t k = 0; k < count; k += 16)
        _mm256_store_si256(reinterpret_cast<__m256i*>(x[r] + k), Widen(LoadHalf(at + k), t.x_signed));
    }
  }
};

inline __m256i Pair(const int16_t* from) {
  int32_t pair;
  memcpy(&pair, from, sizeof pair);
  return _mm256_set1_epi32(pair);
}

template <int kCount>
inline void Rows(const IntegerTile& t, int64_t row, Widened& widened, const Columns (&columns)[2]) {
  __m256i sum[kCount][2];
  for (int i = 0; i < kCount; ++i)
    for (int j = 0; j < 2; ++j) sum[i][j] = Load(t.to.bias + 8 * j);
  const int8_t* w = t.w;
  for (int64_t from = 0; from < t.k; from += kBlock) {
    const int64_t count = t.k - from < kBlock ? t.k - from : kBlock;
    widened.Fill(t, row, kCount, from, count);
    for (int64_t k = 0; k < count; k += 2, w += 32) {
      const __m256i w0 = _mm256_cvtepi8_epi16(LoadHalf(w)), w1 = _mm256_cvtepi8_epi16(LoadHalf(w + 16));
      for (int i = 0; i < kCount; ++i) {
        const __m256i x = Pair(widened.x[i] + k);
        sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(x, w0));
        sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(x, w1));
      }
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

void Tile(const IntegerTile& t) {
  const Columns columns[2] = {{t.to, 0}, {t.to, 8}};
  Widened widened;
  int64_t row = 0;
  for (; row + kRows <= t.rows; row += kRows) Rows<kRows>(t, row, widened, columns);
  for (; row + 3 <= t.rows; row += 3) Rows<3>(t, row, widened, columns);
  for (; row < t.rows; ++row) Rows<1>(t, row, widened, columns);
}

// Two kernel rows of one column of 16 channels, 16 bits each. Unpacking keeps to halves of a register:
// channels 0 to 3 and 8 to 11, then the others; packing the sums puts them in order again.
constexpr int kDepth = 2;

template <bool kSigned>
inline void Interleave(const uint8_t* const (&rows)[kDepth], uint8_t* to) {
  const __m256i a = Widen(LoadHalf(rows[0]), kSigned), b = Widen(LoadHalf(rows[1]), kSigned);
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_unpacklo_epi16(a, b));
  _mm256_store_si256(reinterpret_cast<__m256i*>(to + 32), _mm256_unpackhi_epi16(a, b));
}

template <int kW, int kGroups>
inline void DepthwiseBlock(const IntegerDepthwise& d, int64_t channel, int64_t lanes) {
  const int64_t kernel_w = kW ? kW : d.kernel_w, groups = kGroups ? kGroups : (d.kernel_h + 1) / kDepth;
  const int64_t step = groups * 64, dilation = d.dilation_w * step;
  const int8_t* const weights = d.weights + channel / kDepthBlock * groups * kernel_w * 32;
  const Columns columns[2] = {{d.to, channel, channel + 8}, {d.to, channel + 4, channel + 12}};
  const int32_t* const bias = d.to.bias + channel;
  const __m256i start[2] = {Columns::Halves(bias, bias + 8), Columns::Halves(bias + 4, bias + 12)};
  for (int64_t ox = 0; ox < d.out_w; ++ox) {
    const uint8_t* const x = d.scratch + ox * d.stride_w * step;
    __m256i sum[2] = {start[0], start[1]};
    const int8_t* w = weights;
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t kx = 0; kx < kernel_w; ++kx, w += 32) {
        const uint8_t* const at = x + kx * dilation + g * 64;
        const __m256i both = Load(w);
        const __m256i w0 = _mm256_srai_epi16(_mm256_unpacklo_epi8(both, both), 8),
                      w1 = _mm256_srai_epi16(_mm256_unpackhi_epi8(both, both), 8);
        sum[0] = _mm256_add_epi32(sum[0], _mm256_madd_epi16(Load(at), w0));
        sum[1] = _mm256_add_epi32(sum[1], _mm256_madd_epi16(Load(at + 32), w1));
      }
    const __m256i y = _mm256_packs_epi32(columns[0].Scale(sum[0]), columns[1].Scale(sum[1]));
    StoreBytes(d.out + ox * d.channels + channel, ClampToBytes(y, d.to.range), lanes);
  }
}

void Depthwise(const IntegerDepthwise& d) {
  EachDepthBlock<kDepth>(d, [&]<int kW, int kGroups>(int64_t channel, int64_t lanes) {
    if (d.x_signed)
      GatherColumns<kDepth>(d, channel, lanes, Interleave<true>);
    else
      GatherColumns<kDepth>(d, channel, lanes, Interleave<false>);
    DepthwiseBlock<kW, kGroups>(d, channel, lanes);
  });
}

}  // namespace

const IntegerKernels kIntegerX86Avx2 = {.name = "x86_avx2",
                                        .byte_products = 24,
                                        .cols = 16,
                                        .step = 2,
                                        .tile = Tile,
                                        .depth_rows = kDepth,
                                        .depthwise = Depthwise,
                                        .add = RunAdd};

}  // namespace celer
