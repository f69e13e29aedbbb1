// smmla and its relatives: products of 2 x 8 by 8 x 2 bytes. The register tile is eight rows by eight
// columns: sixteen accumulators of 2 x 2, which leaves room for the weights of sixteen bytes. Rows are read
// as they lie and interleaved in pairs on the fly: matrix instructions go to two of four pipes, so that the
// others have the time.
#include "kernels/network/integer/integer_neon.h"

namespace celer {
namespace {

template <bool kSigned>
inline int32x4_t Product(int32x4_t sum, uint8x16_t x, int8x16_t w) {
  return kSigned ? vmmlaq_s32(sum, vreinterpretq_s8_u8(x), w) : vusmmlaq_s32(sum, x, w);
}

inline uint8x16_t First(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
inline uint8x16_t Second(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
inline int32x4_t First(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
inline int32x4_t Second(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

template <int kPairs, bool kSigned>
inline void Rows(const IntegerTile& t, int64_t row, const Columns<2>& columns) {
  const int64_t rows = t.rows - row < 2 * kPairs ? t.rows - row : 2 * kPairs;
  const uint8_t* x[2 * kPairs];
  for (int i = 0; i < 2 * kPairs; ++i) x[i] = t.x + (row + (i < rows ? i : rows - 1)) * t.x_stride;
  int32x4_t sum[kPairs][4];
  for (int j = 0; j < 4; ++j) {
    const int32x2_t bias = vld1_s32(t.to.bias + 2 * j);
    for (int i = 0; i < kPairs; ++i) sum[i][j] = vcombine_s32(bias, bias);
  }
  const int8_t* w = t.w;
  for (int64_t k = 0; k < t.k; k += 16, w += 128) {
    int8x16_t v[8];
    for (int j = 0; j < 8; ++j) v[j] = vld1q_s8(w + 16 * j);
    for (int i = 0; i < kPairs; ++i) {
      const uint8x16_t a = vld1q_u8(x[2 * i] + k), b = vld1q_u8(x[2 * i + 1] + k);
      const uint8x16_t first = First(a, b), second = Second(a, b);
      for (int j = 0; j < 4; ++j) sum[i][j] = Product<kSigned>(sum[i][j], first, v[j]);
      for (int j = 0; j < 4; ++j) sum[i][j] = Product<kSigned>(sum[i][j], second, v[4 + j]);
    }
  }
  for (int i = 0; i < kPairs; ++i) {
    const int32x4_t low[2] = {First(sum[i][0], sum[i][1]), Second(sum[i][0], sum[i][1])},
                    high[2] = {First(sum[i][2], sum[i][3]), Second(sum[i][2], sum[i][3])};
    for (int h = 0; h < 2 && 2 * i + h < rows; ++h) {
      const int64_t at = (row + 2 * i + h) * t.out_stride;
      if (t.out)
        StoreBytes(t.out + at, columns.Bytes(low[h], high[h], 0, t.to.range), t.cols);
      else
        StoreSums(t.sums + at, low[h], high[h], t.cols);
    }
  }
}

template <bool kSigned>
void TileOf(const IntegerTile& t) {
  const Columns<2> columns(t.to);
  int64_t row = 0;
  for (; row + 8 <= t.rows; row += 8) Rows<4, kSigned>(t, row, columns);
  const int64_t rest = t.rows - row;
  if (rest > 6) return Rows<4, kSigned>(t, row, columns);
  if (rest > 4) return Rows<3, kSigned>(t, row, columns);
  if (rest > 2) return Rows<2, kSigned>(t, row, columns);
  if (rest > 0) Rows<1, kSigned>(t, row, columns);
}

void Tile(const IntegerTile& t) {
  return t.x_signed ? TileOf<true>(t) : TileOf<false>(t);
}

void Depthwise(const IntegerDepthwise& d) {
  if (d.x_signed)
    DepthwiseRow(d, 0, [](int32x4_t sum, uint8x16_t x, int8x16_t w) {
      return vdotq_s32(sum, vreinterpretq_s8_u8(x), w);
    });
  else
    DepthwiseRow(d, 0, [](int32x4_t sum, uint8x16_t x, int8x16_t w) { return vusdotq_s32(sum, x, w); });
}

}  // namespace

const IntegerKernels kIntegerArmI8mm = {.name = "arm_i8mm",
                                        .cols = 8,
                                        .step = 8,
                                        .tile = Tile,
                                        .depth_rows = 4,
                                        .depthwise = Depthwise,
                                        .add = RunAdd};

}  // namespace celer
