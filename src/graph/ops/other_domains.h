// The families of operators of other domains than ONNX's own: one file each, and one row here. Most of
// com.microsoft never gets here: it is expanded when a network is loaded (graph/load/microsoft/expansion.h).
#pragma once

#include "graph/ops/families.h"

namespace celer::graph {

std::span<const Operator> NBitsOperators();
std::span<const Operator> GroupQueryOperators();
std::span<const Operator> TreeOperators();
std::span<const Operator> LinearModelOperators();
std::span<const Operator> EncodeOperators();

inline constexpr Family kOtherFamilies[] = {
    {"Packed weights", NBitsOperators},
    {"Attention with a cache", GroupQueryOperators},
    {"Trees", TreeOperators},
    {"Linear models, support vectors, features", LinearModelOperators},
    {"Categories and columns", EncodeOperators},
};

}  // namespace celer::graph
