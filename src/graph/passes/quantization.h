// What the pass use-integers reads from QuantizeLinear and DequantizeLinear, and what it makes new nodes
// with.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/passes/pass.h"
#include "kernels/network/integer/integer_conv.h"

namespace celer::graph {

// Per-tensor quantization to 8 bits.
struct Quantization {
  double scale = 1;
  int32_t zero = 0;
  bool is_signed = false;

  bool operator==(const Quantization&) const = default;
  ByteRange Range() const { return {zero, is_signed ? -128 : 0, is_signed ? 127 : 255}; }
  int32_t QuantizeValue(float real) const;  // as QuantizeLinear has it
  float DequantizeValue(int32_t byte) const {
    return static_cast<float>(byte - zero) * static_cast<float>(scale);
  }
};

// Of a QuantizeLinear, or of a DequantizeLinear to f32, if it is 8 bits with one constant scale.
std::optional<Quantization> QuantizationOf(Rewriter& r, const Node& node);

// A float value that was dequantized.
struct Dequantized {
  ValueId bytes = kNoValue;
  Quantization q = {};
};
std::optional<Dequantized> DequantizedFrom(Rewriter& r, ValueId value);

// Constant 8-bit weights as integers around zero, with a scale per tensor or per channel: per slice of
// `axis`, of which there are `channels`.
struct IntegerWeights {
  Shape shape;
  std::vector<int8_t> values;
  std::vector<double> scales;  // by channel
};
std::optional<IntegerWeights> WeightsFrom(Rewriter& r, ValueId value, int axis, int64_t channels);
// A constant that may be integers times a scale, dequantized.
std::optional<std::vector<double>> DequantizedConstant(Rewriter& r, ValueId value);

// A Gemm or MatMul of 8-bit integers with constant weights, transposed: [n, k].
struct ByteProduct {
  Dequantized x;
  IntegerWeights w;
  int64_t k = 0, n = 0;
  ValueId bias = kNoValue;
};
std::optional<ByteProduct> ByteProductOf(Rewriter& r, const Node& node);

ValueId AddInt8Constant(Rewriter& r, std::string name, DType dtype, const std::vector<int64_t>& dims,
                        const std::vector<int8_t>& bytes);
ValueId AddInt32Constant(Rewriter& r, std::string name, const std::vector<int64_t>& dims,
                         const std::vector<int32_t>& numbers);

// NHWC form of an image of bytes [n, c, h, w].
ValueId ToNhwc(Rewriter& r, ValueId value);
bool IsNhwc(Rewriter& r, ValueId value);
// Node `n` makes its NCHW output from an NHWC image.
void TransposeToNchw(Rewriter& r, size_t n, ValueId value);

// The lookup table of a function of one byte, if everything between node `quantize` and one dequantized value
// is elementwise with constants, and has no other reader.
struct LookupTable {
  Dequantized from;
  std::vector<int8_t> bytes;
  std::string label;
};
std::optional<LookupTable> FindTable(Rewriter& r, const Node& quantize);

// Integer products with a float result; how many.
int UseFloatResultProducts(Rewriter& r, const std::function<void(std::string)>& explain);
// Products whose left side is dynamically quantized; how many.
int UseDynamicProducts(Rewriter& r, const std::function<void(std::string)>& explain);

}  // namespace celer::graph
