// The operators of PNNX, which are PyTorch's modules and functions, as nodes: one file per family, each with
// its rows of the table.
#pragma once

#include <span>

#include "graph/load/pnnx/lowering.h"

namespace celer::graph {

// "F.relu" and "nn.ReLU" take their input in the same place.
inline ValueId FirstInput(Lowering& l) {
  return l.Argument("input", 0);
}

std::span<const PnnxRow> PnnxActivations();
std::span<const PnnxRow> PnnxProducts();
std::span<const PnnxRow> PnnxShapes();
std::span<const PnnxRow> PnnxReductions();
std::span<const PnnxRow> PnnxNormsAndPools();

}  // namespace celer::graph
