// What reductions and the softmax family are over, for their fast kernels.
#pragma once

#include <optional>

#include "graph/ir/operator.h"

namespace celer::graph {

// A tensor around the axes that are worked over: [outer, n, inner].
struct Around {
  int64_t outer, n, inner;
};

Result<Around> SoftmaxAround(const OpInputs& c);
// The axes of a reduction, if they are known and side by side; dimensions of one do not part them.
std::optional<Around> ReducedRange(const OpInputs& c);

}  // namespace celer::graph
