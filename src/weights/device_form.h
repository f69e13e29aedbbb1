// How a GPU holds the matrices of a WeightPlan. Plain code, without CUDA: what the GPU gets is known, and
// tested, on any machine.
#pragma once

#include <cstdint>
#include <string>

#include "formats/weight_format.h"
#include "kernels/llm/weight_view.h"
#include "kernels/shared/cuda/device_matrix.h"
#include "weights/weight_plan.h"

namespace celer::cuda {

// The matrix without memory. celer's own formats and plain floats are there what they are anywhere. Blocks of
// a file become int8 or int4 with the same values; those with five bits and a minimum are rounded to f16.
DeviceMatrix DeviceForm(const WeightFormatSpec& format, int64_t rows, int64_t cols);

// The same for a matrix of a file; `default_role`: for one that is not in the plan.
DeviceMatrix DeviceForm(const WeightPlan& plan, const WeightView& stored, WeightRole default_role);

ValueRange RangeOf(Format format);
std::string FormatName(const DeviceMatrix& matrix);  // "bf16", "int4-g128"

}  // namespace celer::cuda
