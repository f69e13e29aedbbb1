// What the passes share that fuse an operator with its epilogue.
#pragma once

#include <optional>
#include <string>

#include "graph/passes/pass.h"

namespace celer::graph {

struct Activation {
  std::string name;  // as ActivationOf (graph/ops/fast/fast.h) knows it
  float a = 0, b = 0;
};

// The activation that this node applies to its first input, if it is one that an epilogue can do.
std::optional<Activation> ActivationOf(Rewriter& r, const Node& node);

// The Conv or ConvTranspose of the common domain, with constant f32 weights and bias, that makes a value
// which nobody else reads.
Node* SingleUseConv(Rewriter& r, ValueId value);
bool HasConstantWeights(Rewriter& r, const Node& conv);
int64_t OutputChannels(Rewriter& r, const Node& conv);

// Its outputs become outputs * factor + shift, channel by channel, by other weights. False if the number of
// channels differs.
struct ChannelScale {
  std::vector<float> factor, shift;
};
bool ScaleOutputs(Rewriter& r, Node& conv, const ChannelScale& by);

// `into` becomes an operator of celer's own.
void MakeFused(Node& into);
void SetActivation(Node& into, const Activation& activation);
// A product with a constant f32 matrix of two dimensions, celer's own or one that MakeProduct can make it.
bool IsConstantProduct(Rewriter& r, const Node& node);
void MakeProduct(Node& node);
// `last` is fused into `into`, which makes its output.
void TakeOver(Rewriter& r, Node& into, Node& last);

}  // namespace celer::graph
