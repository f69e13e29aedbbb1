#include "graph/load/pnnx/modules.h"

namespace celer::graph {

const PnnxRow* FindPnnxRow(std::string_view type) {
  static constexpr PnnxRow kExpression = {"pnnx.Expression", LowerExpression};
  if (type == kExpression.type) return &kExpression;
  for (const auto family : {PnnxActivations, PnnxProducts, PnnxShapes, PnnxReductions, PnnxNormsAndPools})
    for (const PnnxRow& row : family())
      if (row.type == type) return &row;
  return nullptr;
}

}  // namespace celer::graph
