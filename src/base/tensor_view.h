// Names memory, owns none; passed by value. Operators write into outputs that the caller allocated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/shape.h"

namespace celer {

struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  Shape shape;
  std::array<int64_t, Shape::kMaxRank> stride{};  // in elements, innermost last

  // Dense and row-major. Block-quantized types are always so. CHECKs that the elements can be counted.
  static TensorView Contiguous(void* data, DType dtype, Device device, const Shape& shape) {
    CELER_CHECK(shape.elements().has_value());
    TensorView view{static_cast<std::byte*>(data), dtype, device, shape, {}};
    int64_t step = 1;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      view.stride[i] = step;
      step *= shape[i];
    }
    return view;
  }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

}  // namespace celer
