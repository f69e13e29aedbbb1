// Shapes as far as they count: converters to GGUF drop dimensions of 1, and the elements lie the same with and without
// them.
#pragma once

#include <vector>

#include "base/shape.h"

namespace celer {

inline Shape Squeezed(const Shape& shape) {
  std::vector<int64_t> dims;
  for (const int64_t dim : shape.dims())
    if (dim != 1) dims.push_back(dim);
  return Shape(std::span<const int64_t>(dims));
}

}  // namespace celer
