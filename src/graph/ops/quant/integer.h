// Integer operators, which the pass use-integers makes: 8 bits in and 8 bits out, images as NHWC. What an
// integer operator computes is specified in kernels/network/integer/requantize.h, bit for bit.
//
//   IntegerConv         x [n, h, w, c], weights i8 [out, c / groups, kh, kw], factors, bias i32 or none;
//                       attributes of Conv
//   IntegerMatMul       x [..., k], weights i8 [n, k], factors, bias i32 or none
//   IntegerAdd          a, b, which broadcast; a_factor, b_factor, start, shift
//   IntegerMul          a, b; a_zero, b_zero, factor
//   IntegerMaxPool      x [n, h, w, c]; attributes of MaxPool
//   IntegerAveragePool  x [n, h, w, c]; attributes of AveragePool, or `global` 1; x_zero, factor, keepdims
//   Table               x, u8 [256]
//   DynamicMatMul       x [..., k], weights i8 [n, k], scales f32 [n], bias f32 [n] or none, what is added to
//                       the result or none; `activation` as a fused MatMul has it. x is f32 and quantized as
//                       DynamicQuantizeLinear does it; or bytes, whose scale and zero are the attributes
//                       x_scale and x_zero, or two more inputs
//
// `factors` are i32 [3, n]: multiplier, left, right of each channel; the attribute `factor` is one such
// triple. All but DynamicMatMul have y_signed, and those with factors zero, low and high.
#pragma once

#include "graph/ir/operator.h"
#include "graph/ops/fast/fast.h"
#include "kernels/network/integer/integer_conv.h"

namespace celer::graph {

ByteRange RangeOf(const Node& node);
// An error unless every channel's factor is a multiplier and shifts that kernels can do.
Status CheckFactors(const TensorView& factors);
// Of x [..., k] and weights [n, k].
ConvShape ProductShapeOf(const OpInputs& c);
Result<ConvShape> IntegerConvShapeOf(const Node& node, const Shape& x, const Shape& w);

// Whether this machine has a higher rate of int8 than of f32 multiply-adds.
bool IntegersAreFast();
// Whether the cost model says that integers take less time: by the multiply-adds that padding adds, what
// im2col gathers and writes, and what Winograd's algorithm saves floats.
bool IntegersAreFaster(const ConvShape& shape);

extern const FastKernel kFastIntegerConv[1], kFastIntegerMatMul[1], kFastDynamicMatMul[1], kFastQuantize[1],
    kFastDynamicQuantize[1], kFastDequantize[1];

// The references: the same by the portable kernels.
Status ReferenceIntegerConv(KernelContext& c);
Status ReferenceIntegerMatMul(KernelContext& c);
Status ReferenceDynamicMatMul(KernelContext& c);

// QuantizeLinear to u8 by one scale and zero point: a division of floats, round-half-to-even, and 0 for NaN.
void QuantizeBytes(const float* x, float scale, int zero, uint8_t* out, int64_t n);
// The zero point of DynamicQuantizeLinear for numbers from `low` up; 0 where they are not finite.
float DynamicZero(float low, float scale);

}  // namespace celer::graph
