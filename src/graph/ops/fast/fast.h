// Operators whose usual cases have kernels of their own (src/kernels): f32, shapes known.
#pragma once

#include <optional>

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

bool ConvFits(const InferContext& c);
Prepared PrepareConv(const InferContext& c, int threads, PackCache& packs);
Status RunConv(KernelContext& c);
bool ConvF16Fits(const InferContext& c);
Prepared PrepareConvF16(const InferContext& c, int threads, PackCache& packs);
Status RunConvF16(KernelContext& c);
inline constexpr FastKernel kFastConv[] = {{"conv", ConvFits, RunConv, PrepareConv, 3},
                                           {"conv f16", ConvF16Fits, RunConvF16, PrepareConvF16, 3}};

bool ConvTransposeFits(const InferContext& c);
Prepared PrepareConvTranspose(const InferContext& c, int threads, PackCache& packs);
Status RunConvTranspose(KernelContext& c);
inline constexpr FastKernel kFastConvTranspose[] = {
    {"product", ConvTransposeFits, RunConvTranspose, PrepareConvTranspose}};

bool MatMulFits(const InferContext& c);
Prepared PrepareMatMul(const InferContext& c, int threads, PackCache& packs);
Status RunMatMul(KernelContext& c);
inline constexpr FastKernel kFastMatMul[] = {{"gemm", MatMulFits, RunMatMul, PrepareMatMul}};

bool FusedMatMulFits(const InferContext& c);
Prepared PrepareFusedMatMul(const InferContext& c, int threads, PackCache& packs);
Status RunFusedMatMul(KernelContext& c);
bool FusedMatMulF16Fits(const InferContext& c);
Prepared PrepareFusedMatMulF16(const InferContext& c, int threads, PackCache& packs);
Status RunFusedMatMulF16(KernelContext& c);
inline constexpr FastKernel kFastFusedMatMul[] = {
    {"gemm", FusedMatMulFits, RunFusedMatMul, PrepareFusedMatMul, 3},
    {"gemm f16", FusedMatMulF16Fits, RunFusedMatMulF16, PrepareFusedMatMulF16, 3}};

bool AttentionFits(const InferContext& c);
Prepared PrepareAttention(const InferContext& c, int threads, PackCache& packs);
Status RunAttention(KernelContext& c);
inline constexpr FastKernel kFastAttention[] = {{"blocks", AttentionFits, RunAttention, PrepareAttention}};

bool GemmFits(const InferContext& c);
Prepared PrepareGemm(const InferContext& c, int threads, PackCache& packs);
Status RunGemm(KernelContext& c);
inline constexpr FastKernel kFastGemm[] = {{"gemm", GemmFits, RunGemm, PrepareGemm}};

bool UnaryFits(const InferContext& c);
Prepared PrepareUnary(const InferContext& c, int threads, PackCache& packs);
Status RunUnary(KernelContext& c);
bool UnaryF16Fits(const InferContext& c);
Status RunUnaryF16(KernelContext& c);
inline constexpr FastKernel kFastUnary[] = {{"vectors", UnaryFits, RunUnary, PrepareUnary},
                                            {"vectors f16", UnaryF16Fits, RunUnaryF16, PrepareUnary}};

bool BinaryFits(const InferContext& c);
Prepared PrepareBinary(const InferContext& c, int threads, PackCache& packs);
Status RunBinary(KernelContext& c);
bool BinaryF16Fits(const InferContext& c);
Status RunBinaryF16(KernelContext& c);
inline constexpr FastKernel kFastBinary[] = {{"vectors", BinaryFits, RunBinary, PrepareBinary},
                                             {"vectors f16", BinaryF16Fits, RunBinaryF16, PrepareBinary}};

bool SquareFits(const InferContext& c);
Status RunSquare(KernelContext& c);
inline constexpr FastKernel kFastPow[] = {{"square", SquareFits, RunSquare}};

bool PoolFits(const InferContext& c);
Prepared PreparePool(const InferContext& c, int threads, PackCache& packs);
Status RunPool(KernelContext& c);
bool MaxPoolF16Fits(const InferContext& c);
Status RunPoolF16(KernelContext& c);
inline constexpr FastKernel kFastPool[] = {{"planes", PoolFits, RunPool, PreparePool},
                                           {"planes f16", MaxPoolF16Fits, RunPoolF16, PreparePool}};

bool GlobalAverageFits(const InferContext& c);
Status RunGlobalAverage(KernelContext& c);
bool GlobalAverageF16Fits(const InferContext& c);
Status RunGlobalAverageF16(KernelContext& c);
inline constexpr FastKernel kFastGlobalAverage[] = {{"rows", GlobalAverageFits, RunGlobalAverage},
                                                    {"rows f16", GlobalAverageF16Fits, RunGlobalAverageF16}};

bool SoftmaxFits(const InferContext& c);
Status RunSoftmax(KernelContext& c);
inline constexpr FastKernel kFastSoftmax[] = {{"rows", SoftmaxFits, RunSoftmax}};

bool LayerNormFits(const InferContext& c);
Status RunLayerNorm(KernelContext& c);
inline constexpr FastKernel kFastLayerNorm[] = {{"rows", LayerNormFits, RunLayerNorm, nullptr, 0}};

bool GroupNormFits(const InferContext& c);
Status RunGroupNorm(KernelContext& c);
inline constexpr FastKernel kFastGroupNorm[] = {{"rows", GroupNormFits, RunGroupNorm, nullptr, 0}};

bool BatchNormFits(const InferContext& c);
Prepared PrepareBatchNorm(const InferContext& c, int threads, PackCache& packs);
Status RunBatchNorm(KernelContext& c);
inline constexpr FastKernel kFastBatchNorm[] = {{"rows", BatchNormFits, RunBatchNorm, PrepareBatchNorm}};

bool SumFits(const InferContext& c);
Prepared PrepareSum(const InferContext& c, int threads, PackCache& packs);
Status RunSum(KernelContext& c);
inline constexpr FastKernel kFastSum[] = {{"rows", SumFits, RunSum, PrepareSum}};

bool RecurrentFits(const InferContext& c);
Prepared PrepareRecurrent(const InferContext& c, int threads, PackCache& packs);
Status RunRecurrent(KernelContext& c);
inline constexpr FastKernel kFastRecurrent[] = {{"gemm", RecurrentFits, RunRecurrent, PrepareRecurrent}};

bool ResizeFits(const InferContext& c);
Prepared PrepareResize(const InferContext& c, int threads, PackCache& packs);
Status RunResize(KernelContext& c);
bool ResizeF16Fits(const InferContext& c);
Status RunResizeF16(KernelContext& c);
inline constexpr FastKernel kFastResize[] = {{"planes", ResizeFits, RunResize, PrepareResize},
                                             {"planes f16", ResizeF16Fits, RunResizeF16, PrepareResize}};

}  // namespace celer::graph
