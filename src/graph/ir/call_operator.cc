#include "graph/ir/call_operator.h"

#include <new>
#include <stdexcept>

namespace celer::graph {

Status CheckInputs(const Operator& op, const InferContext& context) {
  const auto in = static_cast<int>(context.inputs()), out = static_cast<int>(context.outputs());
  if (in < op.inputs.least || (op.inputs.most >= 0 && in > op.inputs.most))
    return Error::Corrupt("it has ", in, " inputs");
  if (out < op.outputs.least || (op.outputs.most >= 0 && out > op.outputs.most))
    return Error::Corrupt("it has ", out, " outputs");
  // One of many that is left out: only a Loop may carry nothing.
  for (size_t i = 0; i < context.inputs(); ++i)
    if (op.inputs.most < 0 && op.name != "Loop" && !context.given(i))
      return Error::Invalid("its input ", i, " is not given");
  if (!(op.traits & (Operator::kSequences | Operator::kControl | Operator::kAnyKind)))
    for (size_t i = 0; i < context.inputs(); ++i) {
      const bool needed = i < static_cast<size_t>(op.inputs.least);
      if (needed && !context.has(i)) return Error::Invalid("its input ", i, " holds nothing");
      if (context.has(i) && context.data(i).kind != Data::Kind::kTensor)
        return Error::Invalid("its input ", i, " is a sequence; it takes tensors");
    }
  if (context.has(0) && context.data(0).kind == Data::Kind::kTensor && !op.types.Has(context.dtype(0)))
    return Error::Unsupported("its input is ", Name(context.dtype(0)),
                              ", a type for which it has no kernel; docs/operators.md lists them");
  return {};
}

Status InferOutputs(const Operator& op, InferContext& context) {
  CELER_RETURN_IF_ERROR(CheckInputs(op, context));
  return CatchBadAlloc([&] { return op.infer(context); });
}

Status RunKernel(const Operator& op, KernelFn kernel, KernelContext& context) {
  // A pass may meet what Program::Make would have completed.
  const std::vector<ValueId>& outputs = context.node.outputs;
  for (size_t i = 0; i < outputs.size() && static_cast<int>(i) < op.outputs.least; ++i)
    if (outputs[i] == kNoValue && !context.wants(i)) return Error::Invalid("its output ", i, " has no name");
  bool complete = !(op.traits & (Operator::kControl | Operator::kSequences | Operator::kAnyKind));
  bool made = false;
  for (size_t i = 0; i < context.outputs(); ++i) {
    if (!context.wants(i)) continue;
    made = true;
    complete = complete && context.out_elements(i) == 0;
  }
  if (made && complete) return {};
  return CatchBadAlloc([&] { return kernel(context); });
}

Status CatchBadAlloc(FunctionRef<Status()> fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return Error::OutOfMemory("this machine has no memory for it; give it smaller inputs");
  } catch (const std::length_error&) {  // a vector of more elements than can be counted
    return Error::OutOfMemory("no machine has memory for it; give it smaller inputs");
  }
}

}  // namespace celer::graph
