// Element types of a byte and less that are not C++ types: to and from float.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/tensor_view.h"

namespace celer::graph {

float SmallToFloat(DType dtype, uint8_t bits);
// Round to nearest even. What is too large becomes the largest if `saturate`, else infinity or NaN.
// `up` rounds E8M0, which has no even, up instead of to the nearest.
uint8_t FloatToSmall(DType dtype, float value, bool saturate);

// Element i of a tensor of any type, as a number.
double ReadElement(const TensorView& tensor, int64_t i);

}  // namespace celer::graph
