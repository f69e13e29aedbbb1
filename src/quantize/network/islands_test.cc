// Layers that are left float because converting costs more than integers save.
#include "quantize/network/islands.h"

#include <gtest/gtest.h>

#include "graph/passes/build_graph.h"

namespace celer::ptq {
namespace {

using graph::testing::Build;

NetworkQuantizer OpenBuilt(Build& build) {
  EXPECT_TRUE(build.graph.Sort());
  graph::Network network;
  network.graph = build.graph;
  network.source = "test.onnx";
  network.opset = 18;
  auto out = NetworkQuantizer::Open(std::move(network), {});
  EXPECT_TRUE(out) << out.error().message();
  return std::move(*out);
}

std::vector<std::string> ConvNames(const NetworkQuantizer& quantizer) {
  std::vector<std::string> out;
  for (size_t n = 0; n < quantizer.network().graph.nodes.size(); ++n)
    if (quantizer.network().graph.nodes[n].op == "Conv") out.push_back(quantizer.facts().names[n]);
  return out;
}

// Softmax stays float, and so cuts the network in pieces.
TEST(Islands, AConvolutionOfFewProductsBetweenFloatOperatorsStaysFloat) {
  Build b({1, 16, 32, 32});
  const ValueId softmax = b.Op("Softmax", {b.x}, {{"axis", int64_t{1}}});
  const ValueId small = b.Op("Conv", {softmax, b.Floats({16, 16, 1, 1})});  // 8 products to a value
  const ValueId again = b.Op("Softmax", {small}, {{"axis", int64_t{1}}});
  const ValueId large = b.Op("Conv", {again, b.Floats({96, 16, 5, 5})});  // about 370
  b.Out(b.Op("Softmax", {large}, {{"axis", int64_t{1}}}));
  const NetworkQuantizer quantizer = OpenBuilt(b);
  const std::vector<std::string> convs = ConvNames(quantizer);
  ASSERT_EQ(convs.size(), 2u);
  const QuantizerPlan plan = quantizer.PlanWithout({});
  const FloatLayers floats = FindIslands(quantizer.network().graph, plan);
  ASSERT_EQ(floats.size(), 1u);
  EXPECT_EQ(floats.begin()->first, convs[0]);
  EXPECT_NE(floats.begin()->second.find("8 multiply-adds"), std::string::npos) << floats.begin()->second;
  const QuantizerPlan without = quantizer.PlanWithout(floats);
  EXPECT_FALSE(without.Find(convs[0]));
  EXPECT_TRUE(without.Find(convs[1]));
  EXPECT_TRUE(FindIslands(quantizer.network().graph, without).empty());
}

// The same small convolutions in a chain hand integers on, and only the ends are converted.
TEST(Islands, AChainIsOneIsland) {
  Build b({1, 16, 32, 32});
  ValueId x = b.Op("Softmax", {b.x}, {{"axis", int64_t{1}}});
  for (int i = 0; i < 9; ++i) x = b.Op("Relu", {b.Op("Conv", {x, b.Floats({16, 16, 1, 1})})});
  b.Out(b.Op("Softmax", {x}, {{"axis", int64_t{1}}}));
  const NetworkQuantizer quantizer = OpenBuilt(b);
  EXPECT_TRUE(FindIslands(quantizer.network().graph, quantizer.PlanWithout({})).empty());
}

}  // namespace
}  // namespace celer::ptq
