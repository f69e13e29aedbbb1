#include "kernels/network/conv/transposed.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/network/elementwise/elementwise.h"
#include "kernels/shared/gemm/gemm.h"

namespace celer {
namespace {

struct Sizes {
  int64_t taps, rows, k, in_plane, out_plane;  // of one group: rows = out channels * taps
};
Sizes SizesOf(const TransposedConvShape& s) {
  const int64_t taps = s.kernel_h * s.kernel_w;
  return {taps, s.out_channels / s.groups * taps, s.channels / s.groups, s.in_h * s.in_w, s.out_h * s.out_w};
}

GemmArgs ProductOf(const TransposedConvShape& s, const TransposedConvArgs& args, int64_t image) {
  const Sizes z = SizesOf(s);
  GemmArgs g{.m = z.rows, .n = z.in_plane, .k = z.k};
  g.a = GemmOperand::Packed(args.weights, GemmPackedAFloats(z.rows, z.k));
  g.b = GemmOperand::Rows(args.in + image * s.channels * z.in_plane, z.in_plane, z.k * z.in_plane);
  g.out = args.workspace;
  g.out_stride = z.in_plane;
  g.batch = s.groups;
  g.out_batch_stride = z.rows * z.in_plane;
  g.pool = args.pool;
  return g;
}

// Floats of the products of one image, before those of the workspace of the product itself.
int64_t ProductFloats(const TransposedConvShape& s) {
  const Sizes z = SizesOf(s);
  return (s.groups * z.rows * z.in_plane + 15) / 16 * 16;
}

// Stride equal to the kernel: windows do not overlap, and every output has one tap.
bool IsInterleaving(const TransposedConvShape& s) {
  return s.kernel_h == s.stride_h && s.kernel_w == s.stride_w && s.dilation_h == 1 && s.dilation_w == 1 &&
         s.pad_top == 0 && s.pad_left == 0 && s.out_h == s.in_h * s.stride_h &&
         s.out_w == s.in_w * s.stride_w;
}

void Interleave(const TransposedConvShape& s, const float* from, float bias, float* plane) {
  const int64_t in_plane = s.in_h * s.in_w;
  for (int64_t y = 0; y < s.out_h; ++y) {
    const float* const taps = from + y % s.stride_h * s.kernel_w * in_plane + y / s.stride_h * s.in_w;
    float* const to = plane + y * s.out_w;
    if (s.stride_w == 2) {
      const float *const a = taps, *const b = taps + in_plane;
      for (int64_t x = 0; x < s.in_w; ++x) {
        to[2 * x] = a[x] + bias;
        to[2 * x + 1] = b[x] + bias;
      }
      continue;
    }
    for (int64_t kx = 0; kx < s.kernel_w; ++kx)
      for (int64_t x = 0; x < s.in_w; ++x) to[x * s.stride_w + kx] = taps[kx * in_plane + x] + bias;
  }
}

void Col2im(const TransposedConvShape& s, const float* from, float bias, float* plane) {
  std::fill_n(plane, s.out_h * s.out_w, bias);
  for (int64_t ky = 0; ky < s.kernel_h; ++ky)
    for (int64_t kx = 0; kx < s.kernel_w; ++kx, from += s.in_h * s.in_w) {
      const int64_t shift = kx * s.dilation_w - s.pad_left, step = s.stride_w;
      // Input columns whose output column lies inside.
      const int64_t first = shift < 0 ? (-shift + step - 1) / step : 0;
      const int64_t last = s.out_w > shift ? std::min(s.in_w, (s.out_w - shift - 1) / step + 1) : 0;
      for (int64_t y = 0; y < s.in_h; ++y) {
        const int64_t oy = y * s.stride_h + ky * s.dilation_h - s.pad_top;
        if (oy < 0 || oy >= s.out_h) continue;
        float* const to = plane + oy * s.out_w + shift;
        const float* const row = from + y * s.in_w;
        for (int64_t x = first; x < last; ++x) to[x * step] += row[x];
      }
    }
}

}  // namespace

int64_t TransposedConvPackedFloats(const TransposedConvShape& s) {
  const Sizes z = SizesOf(s);
  return s.groups * GemmPackedAFloats(z.rows, z.k);
}

void PackTransposedConv(const TransposedConvShape& s, const float* weights, float* packed) {
  const Sizes z = SizesOf(s);
  for (int64_t g = 0; g < s.groups; ++g)
    GemmPackA(GemmOperand::Transposed(weights + g * z.k * z.rows, z.rows), z.rows, z.k,
              packed + g * GemmPackedAFloats(z.rows, z.k));
}

int64_t TransposedConvWorkspaceFloats(const TransposedConvShape& s, int threads) {
  float any = 0;
  return ProductFloats(s) + GemmWorkspaceFloats(ProductOf(s, {.weights = &any}, 0), threads);
}

void TransposedConv(const TransposedConvShape& s, const TransposedConvArgs& args) {
  CELER_CHECK(args.in && args.weights && args.out && args.workspace && args.pool);
  const Sizes z = SizesOf(s);
  const bool interleaves = IsInterleaving(s);
  for (int64_t image = 0; image < s.batch; ++image) {
    GemmArgs product = ProductOf(s, args, image);
    product.workspace = args.workspace + ProductFloats(s);
    Gemm(product);
    const int64_t grain = std::max<int64_t>((16 << 10) / std::max<int64_t>(z.taps * z.in_plane, 1), 1);
    args.pool->ParallelFor(s.out_channels, grain, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const float* const from = args.workspace + c * z.taps * z.in_plane;
        float* const plane = args.out + (image * s.out_channels + c) * z.out_plane;
        (interleaves ? Interleave : Col2im)(s, from, args.bias ? args.bias[c] : 0.0f, plane);
        if (args.f.kind != Pointwise::Kind::kNone) UnaryRow(args.f, plane, plane, z.out_plane);
      }
    });
  }
}

}  // namespace celer
