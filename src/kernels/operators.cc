#include "kernels/operators.h"

#include "kernels/llm/attention/attention.h"
#include "kernels/llm/delta_rule/delta_rule.h"
#include "kernels/llm/latent/head_product.h"
#include "kernels/llm/mamba2/mamba2.h"
#include "kernels/llm/matmul/matmul.h"
#include "kernels/llm/rope/rotate.h"
#include "kernels/network/conv/conv.h"
#include "kernels/network/elementwise/elementwise.h"
#include "kernels/network/integer/integer_conv.h"
#include "kernels/network/pool/pool.h"
#include "kernels/network/rows/rows.h"
#include "kernels/shared/activation/activation.h"
#include "kernels/shared/gemm/gemm.h"

namespace celer {

std::vector<OperatorInfo> KernelOperators() {
  return {Describe<const MatmulKernels*>("matmul", MatmulVariants()),
          Describe<AttentionFn>("attention", AttentionVariants()),
          Describe<ActivateMulFn>("activation", ActivateMulVariants()),
          Describe<HeadTileFn>("head_product", HeadTileVariants()),
          Describe<RotateHeadsFn>("rope", RotateHeadsVariants()),
          Describe<DeltaScanFn>("delta_rule", DeltaScanVariants()),
          Describe<Mamba2ScanFn>("mamba2", Mamba2ScanVariants()),
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
