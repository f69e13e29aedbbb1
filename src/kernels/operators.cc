#include "kernels/operators.h"

#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rope/rotate.h"

namespace celer {

std::vector<OperatorInfo> KernelOperators() {
  return {Describe<const MatmulKernels*>("matmul", MatmulVariants()),
          Describe<AttentionFn>("attention", AttentionVariants()),
          Describe<ActivateMulFn>("activation", ActivateMulVariants()),
          Describe<RotateHeadsFn>("rope", RotateHeadsVariants())};
}

}  // namespace celer
