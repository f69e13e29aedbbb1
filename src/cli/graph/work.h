// The lower bound of what a node must read, write and compute.
#pragma once

#include <vector>

#include "graph/run/memory_plan.h"
#include "limits/work.h"

namespace celer::cli {

// Whether what it multiplies are bytes: its arithmetic has the limit of int8.
bool MultipliesBytes(const graph::Node& node);

double TensorBytes(const graph::Data& data);  // 0 if it is none

// What a node must move. Those that pick from a tensor read only what they give, and views and what was
// folded into constants do nothing.
Work NodeWork(const graph::CompiledNode& compiled, const graph::PlannedNode& planned, double flops,
              const std::vector<graph::Data>& frame);

}  // namespace celer::cli
