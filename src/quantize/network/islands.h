// Layers that stand alone between float operators: what they read must be rounded and what they give must be
// turned back into reals, and with few products between the two that costs more time than integers save.
#pragma once

#include "graph/ir/ir.h"
#include "quantize/network/plan.h"
#include "quantize/network/quantizer.h"

namespace celer::ptq {

// Multiply-adds for each value that is converted, from which on integers pay. Converting a value costs about
// five bytes of traffic and a change of layout, some 2 cycles; a product saves 1/32 cycle as an integer (32
// instead of 16 in a cycle). docs/quantization.md has what was measured.
inline constexpr double kProductsPerConversion = 64;
// Float convolutions of three by three with step 1 need so many times fewer products by Winograd's algorithm,
// which integers cannot use.
inline constexpr double kWinogradSaves = 2.25;

// The products of every island that does not pay, with the reason. An island is what quantized values join;
// sizes that the network leaves open are taken as samples, and where they are not known an island pays.
FloatLayers FindIslands(const graph::Graph& graph, const Plan& plan);

}  // namespace celer::ptq
