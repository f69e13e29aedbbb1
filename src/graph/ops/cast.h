// Changing the type of elements.
#pragma once

#include "base/tensor_view.h"
#include "device/thread_pool.h"
#include "graph/ir/ir.h"

namespace celer::graph {

// The type that ONNX's number means.
Result<DType> DTypeFromOnnx(int64_t number);
// The attribute `key`, or `otherwise` if it is not there.
Result<DType> TypeAttribute(const Node& node, const char* key, DType otherwise);

// Both dense, of equal element counts.
void CastElements(ThreadPool& pool, const TensorView& from, const TensorView& to, bool saturate = true);

}  // namespace celer::graph
