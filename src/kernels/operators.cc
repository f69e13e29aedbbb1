#include "kernels/operators.h"

#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"

namespace celer {

std::vector<OperatorInfo> KernelOperators() {
  return {Describe<const MatmulKernels*>("matmul", MatmulVariants()),
          Describe<AttentionFn>("attention", AttentionVariants()),
          Describe<ActivateMulFn>("activation", ActivateMulVariants())};
}

}  // namespace celer
