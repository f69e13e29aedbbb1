#include "kernels/operators.h"

#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/conv/conv.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/integer/integer_conv.h"
#include "kernels/matmul/matmul.h"
#include "kernels/pool/pool.h"
#include "kernels/rope/rotate.h"
#include "kernels/rows/rows.h"

namespace celer {

std::vector<OperatorInfo> KernelOperators() {
  return {Describe<const MatmulKernels*>("matmul", MatmulVariants()),
          Describe<AttentionFn>("attention", AttentionVariants()),
          Describe<ActivateMulFn>("activation", ActivateMulVariants()),
          Describe<RotateHeadsFn>("rope", RotateHeadsVariants()),
          Describe<const GemmKernels*>("gemm", GemmVariants()),
          Describe<const ConvKernels*>("conv", ConvVariants()),
          Describe<const BasicGemmKernels<F16>*>("gemm_f16", GemmF16Variants()),
          Describe<const BasicConvKernels<F16>*>("conv_f16", ConvF16Variants()),
          Describe<const BasicPoolKernels<F16>*>("pool_f16", PoolF16Variants()),
          Describe<const IntegerKernels*>("integer", IntegerVariants()),
          Describe<const PoolKernels*>("pool", PoolVariants()),
          Describe<const ElementwiseKernels*>("elementwise", ElementwiseVariants()),
          Describe<const RowKernels*>("rows", RowVariants())};
}

}  // namespace celer
