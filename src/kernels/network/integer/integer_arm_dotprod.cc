// sdot: dot products of four bytes, signed on both sides; u8 becomes x - 128. The register tile is eight rows
// by eight columns.
#include "kernels/network/integer/integer_neon.h"

namespace celer {
namespace {

template <int kRows>
inline void Rows(const IntegerTile& t, int64_t row, uint8x16_t flip, const Columns<2>& columns) {
  const uint8_t* x[kRows];
  int32x4_t sum[kRows][2];
  for (int i = 0; i < kRows; ++i) {
    x[i] = t.x + (row + i) * t.x_stride;
    for (int j = 0; j < 2; ++j) sum[i][j] = vld1q_s32(t.to.bias + 4 * j);
  }
  const int8_t* w = t.w;
  for (int64_t k = 0; k < t.k; k += 16, w += 128) {
    int8x16_t v[8];
    for (int j = 0; j < 8; ++j) v[j] = vld1q_s8(w + 16 * j);
    for (int i = 0; i < kRows; ++i) {
      const int8x16_t a = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(x[i] + k), flip));
      for (int j = 0; j < 2; ++j) {
        sum[i][j] = vdotq_laneq_s32(sum[i][j], v[j], a, 0);
        sum[i][j] = vdotq_laneq_s32(sum[i][j], v[2 + j], a, 1);
        sum[i][j] = vdotq_laneq_s32(sum[i][j], v[4 + j], a, 2);
        sum[i][j] = vdotq_laneq_s32(sum[i][j], v[6 + j], a, 3);
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    const int64_t at = (row + i) * t.out_stride;
    if (t.out)
      StoreBytes(t.out + at, columns.Bytes(sum[i][0], sum[i][1], 0, t.to.range), t.cols);
    else
      StoreSums(t.sums + at, sum[i][0], sum[i][1], t.cols);
  }
}

uint8_t FlipOf(bool is_signed) {
  return is_signed ? 0 : 0x80;
}

void Tile(const IntegerTile& t) {
  const Columns<2> columns(t.to);
  const uint8x16_t flip = vdupq_n_u8(FlipOf(t.x_signed));
  int64_t row = 0;
  for (; row + 8 <= t.rows; row += 8) Rows<8>(t, row, flip, columns);
  for (; row + 4 <= t.rows; row += 4) Rows<4>(t, row, flip, columns);
  for (; row < t.rows; ++row) Rows<1>(t, row, flip, columns);
}

void Depthwise(const IntegerDepthwise& d) {
  DepthwiseRow(d, FlipOf(d.x_signed), [](int32x4_t sum, uint8x16_t x, int8x16_t w) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(x), w);
  });
}

}  // namespace

const IntegerKernels kIntegerArmDotprod = {.name = "arm_dotprod",
                                           .cols = 8,
                                           .step = 4,
                                           .unsigned_offset = -128,
                                           .tile = Tile,
                                           .depth_rows = 4,
                                           .depthwise = Depthwise,
                                           .add = RunAdd};

}  // namespace celer
