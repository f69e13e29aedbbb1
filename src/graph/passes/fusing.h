// What the passes share that let an operator do what follows it.
#pragma once

#include <optional>
#include <string>

#include "graph/passes/pass.h"

namespace celer::graph {

struct Activation {
  std::string name;  // as ActivationOf (ops/fast.h) knows it
  float a = 0, b = 0;
};

// The function that this node applies to its first input, if it is one that can end an operator.
std::optional<Activation> ActivationOf(Rewriter& r, const Node& node);

// `into` becomes an operator of celer's own.
void MakeFused(Node& into);
void SetActivation(Node& into, const Activation& activation);
// `last` is done by `into`, which makes what it made.
void TakeOver(Rewriter& r, Node& into, Node& last);

}  // namespace celer::graph
