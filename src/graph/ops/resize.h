// Resize and Upsample; their rows stand in image.cc.
#pragma once

#include "graph/ir/operator.h"

namespace celer::graph {

Status InferResize(InferContext& c);
Status Resize(KernelContext& c);
// How much a neighbour at this distance counts.
double CubicWeight(double distance, double a);

}  // namespace celer::graph
