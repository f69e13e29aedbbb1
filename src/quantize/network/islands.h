// Layers that stand alone between float operators: what they read must be rounded and what they give must be
// turned back into reals, and with few products between the two that costs more time than integers save.
#pragma once

#include "graph/ir.h"
#include "quantize/network/plan.h"
#include "quantize/network/quantizer.h"

namespace celer::ptq {

// Multiply-adds for each value that is converted, from which on integers pay. Converting a value costs about
// five bytes of traffic and a change of layout, some 2 cycles; a product saves 1/32 cycle as an integer (32
// instead of 16 in a cycle). Measured on convolutions of one by one to three by three: docs/quantization.md.
inline constexpr double kProductsPerConversion = 64;

// The products of every island that does not pay, with the reason. An island is what quantized values join;
// sizes that the network leaves open are taken as samples, and where they are not known an island pays.
FloatLayers FindIslands(const graph::Graph& graph, const Plan& plan);

}  // namespace celer::ptq
