// im2col for a row of depthwise outputs, for instructions that sum over several rows of the kernel. Plain
// types: files with an ISA suffix include this.
#pragma once

#include <string.h>

#include "kernels/network/integer/integer_kernels.h"

namespace celer {
namespace {

// Fills the scratch: per column of the image, per group of kDepth kernel rows, 64 bytes that
// interleave(rows, to) makes of 16 channels of each row. Rows outside of the image, and columns, have the
// pad.
template <int kDepth, class Interleave>
inline void GatherColumns(const IntegerDepthwise& d, int64_t channel, int64_t lanes,
                          const Interleave& interleave) {
  const int64_t columns = DepthwiseColumns(d), groups = (d.kernel_h + kDepth - 1) / kDepth;
  uint8_t outside[kDepthBlock], some[kDepth][kDepthBlock] = {};
  memset(outside, d.pad, sizeof outside);
  const uint8_t* padding[kDepth];
  for (int i = 0; i < kDepth; ++i) padding[i] = outside;
  const int64_t end =
      d.pad_left + d.in_w < columns ? d.pad_left + d.in_w : columns;  // of what lies in the image
  for (int64_t g = 0; g < groups; ++g) {
    // Rows outside of the image are one column that does not move.
    const uint8_t* in[kDepth];
    int64_t step[kDepth];
    for (int64_t i = 0; i < kDepth; ++i) {
      const bool is = kDepth * g + i < d.kernel_h && d.in[kDepth * g + i];
      in[i] = is ? d.in[kDepth * g + i] + channel : outside;
      step[i] = is ? d.channels : 0;
    }
    uint8_t* to = d.scratch + g * 64;
    int64_t x = 0;
    for (; x < d.pad_left && x < columns; ++x, to += groups * 64) interleave(padding, to);
    for (; x < end; ++x, to += groups * 64) {
      if (lanes >= kDepthBlock) {
        interleave(in, to);
      } else {  // not a byte behind the image is read
        const uint8_t* copies[kDepth];
        for (int i = 0; i < kDepth; ++i) {
          memcpy(some[i], in[i], static_cast<size_t>(lanes));
          copies[i] = some[i];
        }
        interleave(copies, to);
      }
      for (int i = 0; i < kDepth; ++i) in[i] += step[i];
    }
    for (; x < columns; ++x, to += groups * 64) interleave(padding, to);
  }
}

// Calls run.operator()<kernel width, groups>(first channel, channels) for blocks of 16 channels, with the
// sizes of kernels that are common and 0 for others.
template <int kDepth, class Run>
inline void EachDepthBlock(const IntegerDepthwise& d, const Run& run) {
  constexpr int kThree = (3 + kDepth - 1) / kDepth, kFive = (5 + kDepth - 1) / kDepth;
  for (int64_t c = 0; c < d.channels; c += kDepthBlock) {
    const int64_t lanes = d.channels - c < kDepthBlock ? d.channels - c : kDepthBlock;
    if (d.kernel_h == 3 && d.kernel_w == 3)
      run.template operator()<3, kThree>(c, lanes);
    else if (d.kernel_h == 5 && d.kernel_w == 5)
      run.template operator()<5, kFive>(c, lanes);
    else
      run.template operator()<0, 0>(c, lanes);
  }
}

}  // namespace
}  // namespace celer
