// Where f16 begins and ends, and that a network computes the same to f16's digits. Runs on every CPU: without
// f16 arithmetic on the reference kernels.
#include <gtest/gtest.h>

#include <cmath>

#include "device/variant.h"
#include "graph/ops/fast/fast.h"
#include "graph/passes/build_graph.h"

namespace celer::graph {
namespace {

using testing::Build;

const Attribute kPads = std::vector<int64_t>{1, 1, 1, 1};

int Lower(Build& b) {
  EXPECT_TRUE(b.graph.Sort());
  const SampleShapes shapes = SampleShapesOf(b.graph);
  Rewriter rewriter(&b.graph, &shapes);
  const auto changes = ToF16(rewriter, [](const std::string&) {});
  EXPECT_TRUE(changes);
  EXPECT_TRUE(rewriter.Finish());
  const Status sound = Verify(b.graph);
  EXPECT_TRUE(sound) << sound.error().message();
  return *changes;
}

// Lowers, and compares the outputs before and after, relative to the largest number.
int LowerAndCompare(Build& b, double tolerance) {
  EXPECT_TRUE(b.graph.Sort());
  const auto before = b.Run();
  const int changes = Lower(b);
  const auto after = b.Run();
  EXPECT_EQ(before.size(), after.size());
  for (size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    double scale = 0, error = 0;
    EXPECT_EQ(before[i].size(), after[i].size());
    for (size_t k = 0; k < std::min(before[i].size(), after[i].size()); ++k) {
      scale = std::max(scale, std::abs(static_cast<double>(before[i][k])));
      error = std::max(error, std::abs(static_cast<double>(before[i][k]) - static_cast<double>(after[i][k])));
    }
    EXPECT_LE(error, tolerance * scale);
    EXPECT_GT(error, 0) << "nothing was computed in f16";
  }
  return changes;
}

TEST(ToF16, OneRegionFromTheInputToTheLastProduct) {
  Build b({1, 3, 17, 19});
  const ValueId first = b.Op("Conv", {b.x, b.Floats({24, 3, 3, 3}), b.Floats({24})}, {{"pads", kPads}});
  ValueId y = b.Op("Relu", {first});
  y = b.Op("Conv", {y, b.Floats({24, 1, 3, 3})}, {{"pads", kPads}, {"group", int64_t{24}}});
  y = b.Op("Add", {y, first});
  y = b.Op("MaxPool", {y}, {{"kernel_shape", std::vector<int64_t>{2, 2}}});
  y = b.Op("Concat", {y, b.Op("Sigmoid", {y})}, {{"axis", int64_t{1}}});
  y = b.Op("Conv", {y, b.Floats({30, 48, 1, 1})});
  y = b.Op("GlobalAveragePool", {y});
  y = b.Op("Flatten", {y});
  y = b.Op("Gemm", {y, b.Floats({50, 30}), b.Floats({50})}, {{"transB", int64_t{1}}});
  b.Out(b.Op("Softmax", {y}, {{"axis", int64_t{1}}}));
  EXPECT_EQ(LowerAndCompare(b, 0.02), 11);
  EXPECT_EQ(b.Count("Cast"), 2);  // the input, and what the softmax reads
  for (const Node& node : b.graph.nodes) {
    if (node.op == "Conv" || node.op == "MatMul") {
      EXPECT_EQ(node.domain, kCelerDomain);
    }
  }
}

TEST(ToF16, WhatComesBehindTheLastLargeProductStaysF32) {
  Build b({1, 40, 6, 6});
  const ValueId y = b.Op("Conv", {b.x, b.Floats({40, 40, 1, 1})});
  // Few weights, as where boxes are decoded.
  const ValueId few = b.Op("Conv", {b.Op("Sigmoid", {y}), b.Floats({1, 40, 1, 1})});
  b.Out(b.Op("Mul", {few, b.Scalar(32)}));
  EXPECT_EQ(LowerAndCompare(b, 0.02), 1);
  EXPECT_EQ(b.Count("Cast"), 2);
}

TEST(ToF16, AValueThatBothReadIsCastOnce) {
  Build b({1, 40, 6, 6});
  const ValueId y = b.Op("Conv", {b.x, b.Floats({40, 40, 1, 1})});
  b.Out(b.Op("Exp", {y}));
  b.Out(b.Op("Neg", {y}));
  b.Out(b.Op("Conv", {y, b.Floats({40, 40, 1, 1})}));
  EXPECT_EQ(LowerAndCompare(b, 0.02), 2);
  EXPECT_EQ(b.Count("Cast"), 3);  // the input; y for both; the last output
}

TEST(ToF16, NothingToGain) {
  Build without({2, 30});
  without.Out(without.Op("Relu", {without.x}));
  EXPECT_EQ(Lower(without), 0);
  EXPECT_EQ(without.Count("Cast"), 0);
  Build large({1, 40, 6, 6});  // a constant that f16 does not have: its Add stays f32
  const ValueId y = large.Op("Conv", {large.x, large.Floats({40, 40, 1, 1})});
  large.Out(large.Op("Conv", {large.Op("Add", {y, large.Scalar(1e6f)}), large.Floats({40, 40, 1, 1})}));
  EXPECT_EQ(Lower(large), 2);
  EXPECT_EQ(large.Count("Cast"), 4);
}

TEST(ToF16, RefusedWithoutTheArithmetic) {
  Build b({1, 40, 6, 6});
  b.Out(b.Op("Conv", {b.x, b.Floats({40, 40, 1, 1})}));
  const auto lowered = LowerToF16(&b.graph);
  if (RunsHere(Isa::kArmFp16)) {
    EXPECT_TRUE(lowered);
    return;
  }
  ASSERT_FALSE(lowered);
  EXPECT_NE(lowered.error().message().find("FEAT_FP16"), std::string::npos) << lowered.error().message();
}

}  // namespace
}  // namespace celer::graph
