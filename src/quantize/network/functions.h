// Functions of one value that a network writes out as several operators: x * clip(x + 3, 0, 6) / 6, or x *
// sigmoid(x). A byte has 256 values, so an integer kernel uses a lookup table (graph/passes/find_table.cc):
// values inside the function are never quantized.
#pragma once

#include <vector>

#include "quantize/network/quantizer_plan.h"

namespace celer::ptq {

struct Function {
  ValueId from = kNoValue;    // the one value that is not constant
  std::vector<size_t> nodes;  // in the order of the graph; the last one gives the result
};

// All that have more than one node. None reads a node of another one's inside.
std::vector<Function> FunctionsIn(const graph::Graph& graph, const ValueFacts& facts);

}  // namespace celer::ptq
