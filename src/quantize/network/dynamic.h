// Dynamic quantization: products that quantize their inputs at run time, by the range that each has: no
// samples, no ranges in the file. For transformers, whose activations differ much from input to input.
#pragma once

#include "base/result.h"
#include "quantize/network/insert.h"
#include "quantize/network/quantizer_plan.h"

namespace celer::ptq {

// Each product of the plan becomes DynamicQuantizeLinear, MatMulInteger, Cast and Mul, as ONNX Runtime's
// quantize_dynamic writes it; a Gemm's bias is an Add behind them. Products that read the same value share
// its bytes, those with the same weights share them. Ids of the values that were there stay.
Result<Inserted> InsertDynamic(const graph::Network& network, const QuantizerPlan& plan, bool per_channel);

}  // namespace celer::ptq
