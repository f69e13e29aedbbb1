// Nearest and bilinear resize of f32 or f16 images: each output element is one of the input, or lies between
// two in each direction.
#pragma once

#include <cstdint>
#include <vector>

#include "device/thread_pool.h"
#include "kernels/shared/f16.h"

namespace celer {

// Along one direction, by place of the output: in[first] + weight (in[second] - in[first]). Without weights
// it is in[first].
struct ResizeAxis {
  std::vector<int32_t> first, second = {};
  std::vector<float> weight = {};

  int64_t size() const { return static_cast<int64_t>(first.size()); }
  bool nearest() const { return weight.empty(); }
};

// [planes, in_h, in_w] to [planes, y.size(), x.size()]. Both axes are nearest, or neither is; their places
// lie inside the input.
void ResizePlanes(const float* in, int64_t planes, int64_t in_h, int64_t in_w, const ResizeAxis& y,
                  const ResizeAxis& x, float* out, ThreadPool& pool);
void ResizePlanes(const F16* in, int64_t planes, int64_t in_h, int64_t in_w, const ResizeAxis& y,
                  const ResizeAxis& x, F16* out, ThreadPool& pool);

}  // namespace celer
