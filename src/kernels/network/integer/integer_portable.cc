// The definition of what integer kernels compute, bit for bit, in plain C++.
#include "kernels/network/integer/integer_kernels.h"

namespace celer {
namespace {

int32_t Element(uint8_t byte, bool is_signed) {
  return is_signed ? static_cast<int8_t>(byte) : byte;
}

constexpr int kCols = 16;

template <bool kSigned>
void TileRow(const IntegerTile& t, const uint8_t* x, int32_t (&sum)[kCols]) {
  const int8_t* w = t.w;
  for (int64_t k = 0; k < t.k; ++k, w += kCols) {
    const auto value = static_cast<int16_t>(Element(x[k], kSigned));
    for (int c = 0; c < kCols; ++c) sum[c] += static_cast<int16_t>(value * w[c]);
  }
}

void Tile(const IntegerTile& t) {
  for (int64_t r = 0; r < t.rows; ++r) {
    int32_t sum[kCols];
    for (int c = 0; c < kCols; ++c) sum[c] = t.to.bias[c];
    if (t.x_signed)
      TileRow<true>(t, t.x + r * t.x_stride, sum);
    else
      TileRow<false>(t, t.x + r * t.x_stride, sum);
    for (int64_t c = 0; c < t.cols; ++c) {
      if (t.out)
        t.out[r * t.out_stride + c] =
            ToByte(ScaleSum(sum[c], t.to.multiplier[c], t.to.left[c], t.to.right[c]), t.to.range);
      else
        t.sums[r * t.out_stride + c] = sum[c];
    }
  }
}

void Depthwise(const IntegerDepthwise& d) {
  for (int64_t ox = 0; ox < d.out_w; ++ox)
    for (int64_t c = 0; c < d.channels; c += kDepthBlock) {
      const int64_t lanes = d.channels - c < kDepthBlock ? d.channels - c : kDepthBlock;
      const int8_t* w = d.weights + c * d.kernel_h * d.kernel_w;
      int32_t sum[kDepthBlock] = {};
      for (int64_t i = 0; i < lanes; ++i) sum[i] = d.to.bias[c + i];
      for (int64_t ky = 0; ky < d.kernel_h; ++ky)
        for (int64_t kx = 0; kx < d.kernel_w; ++kx, w += kDepthBlock) {
          const int64_t ix = ox * d.stride_w + kx * d.dilation_w - d.pad_left;
          const bool inside = d.in[ky] && ix >= 0 && ix < d.in_w;
          const uint8_t* const x = inside ? d.in[ky] + ix * d.channels + c : &d.pad;
          const int64_t step = inside ? 1 : 0;
          for (int64_t i = 0; i < lanes; ++i) sum[i] += Element(x[i * step], d.x_signed) * w[i];
        }
      for (int64_t i = 0; i < lanes; ++i)
        d.out[ox * d.channels + c + i] =
            ToByte(ScaleSum(sum[i], d.to.multiplier[c + i], d.to.left[c + i], d.to.right[c + i]), d.to.range);
    }
}

void Add(const AddBytes& add) {
  for (int64_t i = 0; i < add.n; ++i) {
    const int32_t sum = Element(add.a[i], add.a_signed) * add.a_factor +
                        Element(add.b[i], add.b_signed) * add.b_factor + add.start;
    add.out[i] = ToByte(sum >> add.shift, add.range);
  }
}

}  // namespace

const IntegerKernels kIntegerPortable = {.name = "portable",
                                         .byte_products = 0,  // floats are faster
                                         .cols = kCols,
                                         .step = 1,
                                         .tile = Tile,
                                         .depth_rows = 1,
                                         .depthwise = Depthwise,
                                         .add = Add};

}  // namespace celer
