// Islands: quantized layers between float operators. Their inputs must be quantized and their outputs
// dequantized, and with few multiply-adds in between that costs more time than integers save.
#pragma once

#include "graph/ir/ir.h"
#include "quantize/network/quantizer.h"
#include "quantize/network/quantizer_plan.h"

namespace celer::ptq {

// Multiply-adds per converted value from which on integers pay. Converting a value costs about five bytes of
// traffic and a change of layout, some 2 cycles; a multiply-add saves 1/32 cycle as an integer (32 instead of
// 16 in a cycle). docs/quantization.md has what was measured.
inline constexpr double kProductsPerConversion = 64;
// Float 3x3 convolutions of stride 1 need this many times fewer multiply-adds by Winograd's algorithm, which
// integers cannot use.
inline constexpr double kWinogradSaves = 2.25;

// The products of every island that does not pay, with the reason. An island is what quantized values join;
// sizes that the network leaves open are taken as samples, and where they are not known an island pays.
FloatLayers FindIslands(const graph::Graph& graph, const QuantizerPlan& plan);

}  // namespace celer::ptq
