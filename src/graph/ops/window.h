// Sliding windows over the spatial dimensions of [batch, channels, ...]: what convolutions and pools share.
// One to three spatial dimensions, always handled as three: missing ones in front are of size 1.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "graph/ir/ir.h"

namespace celer {
struct ConvShape;
}

namespace celer::graph {

struct Window {
  int rank = 0;  // spatial dimensions of the tensor
  std::array<int64_t, 3> in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1}, stride{1, 1, 1}, dilation{1, 1, 1},
      before{0, 0, 0}, after{0, 0, 0};

  // The spatial dimensions of the output, as the tensor has them.
  std::span<const int64_t> out_dims() const { return std::span(out).subspan(3 - rank); }
  int64_t in_size() const { return in[0] * in[1] * in[2]; }
  int64_t out_size() const { return out[0] * out[1] * out[2]; }
  int64_t kernel_size() const { return kernel[0] * kernel[1] * kernel[2]; }
  // The sizes and pads are of the order of the input: a kernel may lay out the padded input in memory.
  bool Modest() const;
};

// Reads strides, pads, dilations, auto_pad and ceil_mode; `kernel` are the spatial dimensions of the window.
// All are checked, so that a kernel may trust them.
Result<Window> SlidingWindow(const Node& node, const Shape& input, std::span<const int64_t> kernel);
// The same for a transposed convolution, with output_padding and output_shape.
Result<Window> TransposedWindow(const Node& node, const Shape& input, std::span<const int64_t> kernel);

// Of a convolution of images: a window of at most two dimensions.
ConvShape ConvShapeOf(const Window& window, int64_t batch, int64_t channels, int64_t out_channels,
                      int64_t groups);

}  // namespace celer::graph
