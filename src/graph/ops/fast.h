// Operators whose usual cases have kernels of their own (src/kernels): f32, shapes known.
#pragma once

#include "graph/operator.h"

namespace celer::graph {

// A convolution with what follows it, which passes make of several nodes: domain "celer", operator Conv.
// Inputs x, weights, bias, add; attributes of Conv, and `activation` with its numbers `a` and `b`.
inline constexpr std::string_view kCelerDomain = "celer";

bool ConvFits(const InferContext& c);
Prepared PrepareConv(const InferContext& c, int threads, PackCache& packs);
Status RunConv(KernelContext& c);
inline constexpr FastKernel kFastConv[] = {{"conv", ConvFits, RunConv, PrepareConv}};

bool MatMulFits(const InferContext& c);
Prepared PrepareMatMul(const InferContext& c, int threads, PackCache& packs);
Status RunMatMul(KernelContext& c);
inline constexpr FastKernel kFastMatMul[] = {{"gemm", MatMulFits, RunMatMul, PrepareMatMul}};

bool GemmFits(const InferContext& c);
Prepared PrepareGemm(const InferContext& c, int threads, PackCache& packs);
Status RunGemm(KernelContext& c);
inline constexpr FastKernel kFastGemm[] = {{"gemm", GemmFits, RunGemm, PrepareGemm}};

}  // namespace celer::graph
