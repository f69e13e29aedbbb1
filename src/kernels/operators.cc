#include "kernels/operators.h"

#include "kernels/matmul/matmul.h"

namespace celer {

std::vector<OperatorInfo> KernelOperators() {
  return {Describe<MatmulFn>("matmul", MatmulVariants())};
}

}  // namespace celer
