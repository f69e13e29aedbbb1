// Plain loops with double accumulators.
#include "kernels/network/conv/conv_kernels.h"
#include "kernels/shared/gemm/pointwise_reference.h"

namespace celer {
namespace {

template <class T>
void Depthwise(const BasicDepthwisePlane<T>& p) {
  for (int64_t oy = 0; oy < p.out_h; ++oy)
    for (int64_t ox = 0; ox < p.out_w; ++ox) {
      double sum = p.bias;
      for (int64_t ky = 0; ky < p.kernel_h; ++ky)
        for (int64_t kx = 0; kx < p.kernel_w; ++kx) {
          const int64_t y = oy * p.stride_h - p.pad_top + ky * p.dilation_h;
          const int64_t x = ox * p.stride_w - p.pad_left + kx * p.dilation_w;
          if (y >= 0 && y < p.in_h && x >= 0 && x < p.in_w)
            sum += reference::Get(p.in[y * p.in_w + x]) * reference::Get(p.weights[ky * p.kernel_w + kx]);
        }
      const int64_t at = oy * p.out_w + ox;
      const double add = p.add ? reference::Get(p.add[at]) : 0;
      reference::Put(p.out[at],
                     p.add_last ? reference::Apply(p.f, sum) + add : reference::Apply(p.f, sum + add));
    }
}

}  // namespace

// Without transforms: the reference of a 3x3 convolution is the im2col GEMM.
const ConvKernels kConvReference = {
    .name = "reference", .gemm = &kGemmReference, .depthwise = Depthwise<float>};
const BasicConvKernels<F16> kConvReferenceF16 = {
    .name = "reference", .gemm = &kGemmReferenceF16, .depthwise = Depthwise<F16>};

}  // namespace celer
