// Plain types: files with an ISA suffix include this.
#pragma once

#include <stdint.h>

namespace celer {

// One padded plane of an input, with the columns of a stride deinterleaved by phase, so that each tap of
// neighbouring outputs is a contiguous vector.
struct PaddedLayout {
  int64_t rows = 0;    // of the padded input
  int64_t phase = 0;   // numbers from the columns of one place in a stride to the next
  int64_t row = 0;     // numbers from one row to the next
  int64_t floats = 0;  // of the padded input
};
constexpr int64_t kMostLanes = 16;

inline PaddedLayout LayoutOf(int64_t out_h, int64_t out_w, int64_t kernel_h, int64_t kernel_w,
                             int64_t stride_h, int64_t stride_w, int64_t dilation_h, int64_t dilation_w) {
  PaddedLayout l;
  l.rows = (out_h - 1) * stride_h + (kernel_h - 1) * dilation_h + 1;
  l.phase = out_w + (kernel_w - 1) * dilation_w / stride_w + kMostLanes;
  l.row = l.phase * stride_w;
  l.floats = (l.rows * l.row + kMostLanes + 15) / 16 * 16;
  return l;
}

}  // namespace celer
