// The families of operators: one file each, and one row here.
#pragma once

#include <span>
#include <string_view>

#include "graph/ir/operator.h"

namespace celer::graph {

struct Family {
  std::string_view title;
  std::span<const Operator> (*rows)();
};

std::span<const Operator> UnaryOperators();
std::span<const Operator> BinaryOperators();
std::span<const Operator> CastOperators();
std::span<const Operator> ShapeOperators();
std::span<const Operator> MoveOperators();
std::span<const Operator> ReduceOperators();
std::span<const Operator> MatmulOperators();
std::span<const Operator> ConvOperators();
std::span<const Operator> FusedOperators();
std::span<const Operator> IntegerOperators();
std::span<const Operator> PoolOperators();
std::span<const Operator> GatherOperators();
std::span<const Operator> NormOperators();
std::span<const Operator> QuantOperators();
std::span<const Operator> ControlOperators();
std::span<const Operator> ImageOperators();
std::span<const Operator> RnnOperators();
std::span<const Operator> AttentionOperators();
std::span<const Operator> LossOperators();
std::span<const Operator> SignalOperators();
std::span<const Operator> EinsumOperators();
std::span<const Operator> RandomOperators();

inline constexpr Family kFamilies[] = {
    {"Elementwise, one input", UnaryOperators},
    {"Elementwise, several inputs", BinaryOperators},
    {"Types", CastOperators},
    {"Shapes", ShapeOperators},
    {"Moving elements", MoveOperators},
    {"Reductions and softmax", ReduceOperators},
    {"Matrix products", MatmulOperators},
    {"Convolutions", ConvOperators},
    {"Made by passes", FusedOperators},
    {"Made by passes, integer", IntegerOperators},
    {"Pools", PoolOperators},
    {"Choosing elements", GatherOperators},
    {"Normalizations", NormOperators},
    {"Quantization", QuantOperators},
    {"Control, sequences, optionals", ControlOperators},
    {"Images and boxes", ImageOperators},
    {"Recurrent networks", RnnOperators},
    {"Attention", AttentionOperators},
    {"Losses", LossOperators},
    {"Signals", SignalOperators},
    {"Einstein sums", EinsumOperators},
    {"Random numbers", RandomOperators},
};

}  // namespace celer::graph
