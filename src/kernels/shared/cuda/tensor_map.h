// Tensor maps (TMA descriptors) of matrices in global memory, for bulk copies of boxes into shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace celer::cuda {

// [depth, height, width] elements of 4 or 8 bytes. Rows follow each other; the matrices lie `depth_pitch`
// bytes apart.
struct TensorMapShape {
  int element_bytes = 8;
  int64_t width = 0, height = 0;
  int64_t depth = 0, depth_pitch = 0;  // depth 0: one matrix, whose boxes have two coordinates
  int box_width = 0, box_height = 0;
};
// False where the driver has no TMA, or not for this shape.
bool MakeTensorMap(const void* data, const TensorMapShape& shape, CUtensorMap* out);

}  // namespace celer::cuda
