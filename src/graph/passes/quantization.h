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

// Bytes with one scale for all.
struct Quantization {
  double scale = 1;
  int32_t zero = 0;
  bool is_signed = false;

  bool operator==(const Quantization&) const = default;
  ByteRange Range() const { return {zero, is_signed ? -128 : 0, is_signed ? 127 : 255}; }
  int32_t ByteOf(float real) const;  // as QuantizeLinear has it
  float RealOf(int32_t byte) const { return static_cast<float>(byte - zero) * static_cast<float>(scale); }
};

// Of a QuantizeLinear, or of a DequantizeLinear to f32, if its bytes are 8 bits with one constant scale.
std::optional<Quantization> QuantizationOf(Rewriter& r, const Node& node);

// A real value that was bytes.
struct Dequantized {
  ValueId bytes = kNoValue;
  Quantization q = {};
};
std::optional<Dequantized> DequantizedFrom(Rewriter& r, ValueId value);

// Constant weights of 8 bits as integers around zero, with one scale or one per slice of `axis`, whose number
// is `channels`.
struct IntegerWeights {
  Shape shape;
  std::vector<int8_t> values;
  std::vector<double> scales;  // by channel
};
std::optional<IntegerWeights> WeightsFrom(Rewriter& r, ValueId value, int axis, int64_t channels);
// A constant that may be integers times a scale, as reals.
std::optional<std::vector<double>> RealsOf(Rewriter& r, ValueId value);

// A Gemm or MatMul of bytes with constant weights, by column: [n, k].
struct ByteProduct {
  Dequantized x;
  IntegerWeights w;
  int64_t k = 0, n = 0;
  ValueId bias = kNoValue;
};
std::optional<ByteProduct> ByteProductOf(Rewriter& r, const Node& node);

ValueId AddBytes8(Rewriter& r, std::string name, DType dtype, const std::vector<int64_t>& dims,
                  const std::vector<int8_t>& bytes);
ValueId AddWhole(Rewriter& r, std::string name, const std::vector<int64_t>& dims,
                 const std::vector<int32_t>& numbers);

// The image with its channels last; of bytes, [n, c, h, w].
ValueId ChannelsLast(Rewriter& r, ValueId value);
bool HasChannelsLast(Rewriter& r, ValueId value);
// Node `n` makes what it made before from an image with its channels last.
void MakeChannelsSecond(Rewriter& r, size_t n, ValueId value);

// The byte that a function of one byte gives for each of 256, if everything between node `quantize` and one
// dequantized value is elementwise with constants, and read by nobody else.
struct TableOf {
  Dequantized from;
  std::vector<int8_t> bytes;
  std::string label;
};
std::optional<TableOf> FindTable(Rewriter& r, const Node& quantize);

// Products of bytes whose result stays real; how many.
int UseRealProducts(Rewriter& r, const std::function<void(std::string)>& explain);
// Products whose left side is quantized as it comes; how many.
int UseDynamicProducts(Rewriter& r, const std::function<void(std::string)>& explain);

}  // namespace celer::graph
