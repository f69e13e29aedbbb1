// Operators whose usual cases have kernels of their own (src/kernels): f32 or f16, shapes known.
#pragma once

#include <optional>
#include <type_traits>

#include "graph/ir/operator.h"
#include "kernels/shared/gemm/epilogue.h"

namespace celer::graph {

// Operators that passes make of several nodes have a domain of their own:
//   Conv       x, weights, bias, add; attributes of Conv, and `activation` with its numbers `a` and `b`
//   MatMul     a, b, bias, add; `transB`, and `activation` likewise
//   Attention  q, k, v, mask: softmax(scale q k + mask) v; `scale`
// What is added has the shape of the result, or broadcasts with it. x and a may be f16, and so is then what
// is added and what comes out; constant weights and biases stay f32, and kernels round the weights as they
// pack.
inline constexpr std::string_view kCelerDomain = "celer";

// The function that a fused operator ends with, from its attributes; and their names.
Pointwise ActivationOf(const Node& node);
// The function that an elementwise node applies to its first input; nothing for another node.
std::optional<Pointwise> PointwiseOf(const OpInputs& c);

// The shape of a fused convolution's or product's result before something is added to it.
Result<Shape> ConvOutputShape(const OpInputs& c);
Result<Shape> MatMulOutputShape(const OpInputs& c);

// y = f(y + add), in place, where `add` broadcasts to y.
void FinishFused(const KernelContext& c, const TensorView& y, size_t add);

// f32 and f16 are what fast kernels of reals know.
template <class T>
inline constexpr DType kDTypeOf = std::is_same_v<T, float> ? DType::kF32 : DType::kF16;

// For the operators' tables; each list is defined beside its functions.
extern const FastKernel kFastConv[2], kFastConvTranspose[1], kFastMatMul[1], kFastFusedMatMul[2],
    kFastAttention[1], kFastGemm[1], kFastUnary[2], kFastBinary[2], kFastPow[1], kFastPool[2],
    kFastGlobalAverage[2], kFastSoftmax[1], kFastLayerNorm[1], kFastGroupNorm[1], kFastBatchNorm[1],
    kFastSum[1], kFastRecurrent[1], kFastResize[2];

}  // namespace celer::graph
