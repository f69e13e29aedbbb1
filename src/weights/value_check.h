// Validates that the weights of a file are finite and in range. Fast path: one pass over memory, and of
// quantized blocks only the scales. What that cannot prove is decoded and checked exactly.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "device/thread_pool.h"
#include "formats/weight_format.h"
#include "kernels/llm/weight_view.h"

namespace celer {

// False if an element of rows [begin, end) may be NaN, infinite or out of range.
bool SurelyInRange(const WeightView& weight, int64_t begin, int64_t end, const ValueRange& range);
bool InRange(const float* row, int64_t n, const ValueRange& range);

// One sentence about the first element of the rows that is NaN, infinite or out of range.
Status CheckRows(const WeightView& weight, int64_t begin, int64_t end, const ValueRange& range);
// The same of the whole matrix, quick if nothing is wrong.
Status CheckValues(const WeightView& weight, const ValueRange& range, ThreadPool& pool);
// The same of a vector.
Status CheckVector(std::string_view name, const float* values, int64_t n);

}  // namespace celer
