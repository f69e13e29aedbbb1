// The only way to call an operator's functions. A file decides what an operator is given: here the inputs are
// checked before inference sees them, a kernel with nothing to write is not called, and std::bad_alloc
// becomes an error, on whichever thread it was thrown.
#pragma once

#include "base/function_ref.h"
#include "graph/ir/operator.h"

namespace celer::graph {

// An error when the number of inputs or outputs, their kinds or the type of the first are not the operator's.
Status CheckInputs(const Operator& op, const InferContext& context);

// CheckInputs, then the operator's inference.
Status InferOutputs(const Operator& op, InferContext& context);

// Runs `kernel`, which is the operator's reference or one of its fast ones. An output without elements is
// complete as it is: its other dimensions may be of any size, and no kernel walks over them.
Status RunKernel(const Operator& op, KernelFn kernel, KernelContext& context);

// std::bad_alloc and std::length_error from fn, as an error.
Status CatchBadAlloc(FunctionRef<Status()> fn);

}  // namespace celer::graph
