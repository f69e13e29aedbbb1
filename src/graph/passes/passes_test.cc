// Each pass fires where it should, changes nothing that is computed, and does not fire where it must not.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/passes/build_graph.h"

namespace celer::graph {
namespace {

using testing::Build;

TEST(Passes, ConstantsAreComputedAhead) {
  Build b({2, 3});
  const ValueId sum = b.Op("Add", {b.Floats({3}), b.Floats({3})});
  b.Out(b.Op("Mul", {b.x, b.Op("Exp", {sum})}));
  EXPECT_EQ(b.Fires("fold-constants"), 2);
  EXPECT_EQ(b.graph.nodes.size(), 1u);
  Build not_constant({2, 3});
  not_constant.Out(not_constant.Op("Exp", {not_constant.x}));
  EXPECT_EQ(not_constant.Fires("fold-constants"), 0);
}

TEST(Passes, WhatChangesNothingIsLeftOut) {
  Build b({2, 3});
  ValueId y = b.Op("Identity", {b.x});
  y = b.Op("Dropout", {y});
  y = b.Op("Transpose", {y}, {{"perm", std::vector<int64_t>{0, 1}}});
  y = b.Op("Pad", {y, b.Ints({0, 0, 0, 0})});
  b.Out(b.Op("Relu", {y}));
  EXPECT_EQ(b.Fires("remove-identities"), 4);
  EXPECT_EQ(b.graph.nodes.size(), 1u);

  Build output({2, 3});  // the output keeps its name
  output.Out(output.Op("Identity", {output.x}));
  EXPECT_EQ(output.Fires("remove-identities"), 0);
  Build moves({2, 3});
  moves.Out(moves.Op("Relu", {moves.Op("Transpose", {moves.x}, {{"perm", std::vector<int64_t>{1, 0}}})}));
  EXPECT_EQ(moves.Fires("remove-identities"), 0);
}

TEST(Passes, TheSameIsComputedOnce) {
  Build b({2, 3});
  b.Out(b.Op("Add", {b.Op("Exp", {b.x}), b.Op("Exp", {b.x})}));
  EXPECT_EQ(b.Fires("merge-equal"), 1);
  EXPECT_EQ(b.Count("Exp"), 1);
  Build other({2, 3});
  other.Out(other.Op("Concat",
                     {other.Op("LeakyRelu", {other.x}, {{"alpha", 0.1f}}),
                      other.Op("LeakyRelu", {other.x}, {{"alpha", 0.2f}})},
                     {{"axis", int64_t{0}}}));
  EXPECT_EQ(other.Fires("merge-equal"), 0);
}

TEST(Passes, MovesThatFollowEachOtherAreJoined) {
  Build b({2, 3, 4});
  const ValueId y = b.Op("Transpose", {b.x}, {{"perm", std::vector<int64_t>{2, 0, 1}}});
  b.Out(b.Op("Relu", {b.Op("Transpose", {y}, {{"perm", std::vector<int64_t>{1, 2, 0}}})}));
  EXPECT_EQ(b.Fires("cancel-moves"), 1);
  EXPECT_EQ(b.Count("Transpose"), 0);  // together they are none

  Build reshapes({2, 12});
  reshapes.Out(reshapes.Op(
      "Reshape", {reshapes.Op("Reshape", {reshapes.x, reshapes.Ints({2, 3, 4})}), reshapes.Ints({6, 4})}));
  EXPECT_EQ(reshapes.Fires("cancel-moves"), 1);
  Build copies({2, 12});  // 0: as in its input
  copies.Out(
      copies.Op("Reshape", {copies.Op("Reshape", {copies.x, copies.Ints({4, 6})}), copies.Ints({0, 2, 3})}));
  EXPECT_EQ(copies.Fires("cancel-moves"), 0);
  Build read_twice({2, 3});
  const ValueId t = read_twice.Op("Transpose", {read_twice.x}, {{"perm", std::vector<int64_t>{1, 0}}});
  read_twice.Out(read_twice.Op("Transpose", {t}, {{"perm", std::vector<int64_t>{1, 0}}}));
  read_twice.Out(t);
  EXPECT_EQ(read_twice.Fires("cancel-moves"), 0);
}

ValueId Norm(Build& b, ValueId y, int64_t channels) {
  return b.Op("BatchNormalization", {y, b.Floats({channels}), b.Floats({channels}), b.Floats({channels}),
                                     b.Floats({channels}, 0.5f)});
}

TEST(Passes, ABatchNormIsInTheWeights) {
  for (const bool bias : {false, true}) {
    Build b({1, 4, 5, 5});
    std::vector<ValueId> in = {b.x, b.Floats({6, 2, 3, 3})};
    if (bias) in.push_back(b.Floats({6}));
    b.Out(Norm(b, b.Op("Conv", in, {{"group", int64_t{2}}}), 6));
    EXPECT_EQ(b.Fires("fuse-batch-norm"), 1);
    EXPECT_EQ(b.graph.nodes.size(), 1u);
    Build t({1, 4, 5, 5});
    in = {t.x, t.Floats({4, 3, 3, 3})};
    if (bias) in.push_back(t.Floats({6}));
    t.Out(Norm(t, t.Op("ConvTranspose", in, {{"group", int64_t{2}}, {"strides", std::vector<int64_t>{2, 2}}}),
               6));
    EXPECT_EQ(t.Fires("fuse-batch-norm"), 1);
  }
  Build read_twice({1, 4, 5, 5});
  const ValueId y = read_twice.Op("Conv", {read_twice.x, read_twice.Floats({6, 4, 3, 3})});
  read_twice.Out(Norm(read_twice, y, 6));
  read_twice.Out(read_twice.Op("Relu", {y}));
  EXPECT_EQ(read_twice.Fires("fuse-batch-norm"), 0);
  Build alone({1, 4, 5, 5});
  alone.Out(Norm(alone, alone.Op("Relu", {alone.x}), 4));
  EXPECT_EQ(alone.Fires("fuse-batch-norm"), 0);
}

TEST(Passes, FactorsAndTermsAreInTheWeights) {
  const std::vector<int64_t> border = {1, 1, 1, 1}, none = {0, 0, 0, 0};
  for (const bool padded : {false, true}) {
    Build b({1, 4, 5, 5});
    ValueId y = b.Op("Add", {b.Op("Mul", {b.Scalar(0.7f), b.x}), b.Scalar(0.3f)});
    y = b.Op("Conv", {y, b.Floats({6, 4, 3, 3}), b.Floats({6})}, {{"pads", padded ? border : none}});
    y = b.Op("Add", {b.Op("Mul", {y, b.Scalar(1.5f)}), b.Floats({1, 6, 1, 1})});
    b.Out(b.Op("Relu", {y}));
    EXPECT_EQ(b.Fires("fuse-scale", {.portable = true}), padded ? 3 : 4);
    EXPECT_EQ(b.Count("Mul"), 0);
    EXPECT_EQ(b.Count("Add"), padded ? 1 : 0);  // the border is 0, not what is added
  }
  Build t({1, 4, 5, 5});
  t.Out(t.Op("Mul", {t.Op("ConvTranspose", {t.x, t.Floats({4, 3, 2, 2})}, {{"group", int64_t{2}}}),
                     t.Floats({6, 1, 1})}));
  EXPECT_EQ(t.Fires("fuse-scale"), 1);

  for (const int why : {0, 1, 2}) {
    Build no({1, 5, 5, 5});
    const ValueId conv = no.Op("Conv", {no.x, no.Floats({5, 5, 1, 1})});
    // One factor per column is none per channel, one that makes a dimension, and a result that is read twice.
    const ValueId by = why == 0 ? no.Floats({5}) : why == 1 ? no.Floats({1, 1, 1, 1, 1}) : no.Scalar(2);
    no.Out(no.Op("Mul", {conv, by}));
    if (why == 2) no.Out(no.Op("Exp", {conv}));
    EXPECT_EQ(no.Fires("fuse-scale"), 0) << why;
  }
}

TEST(Passes, AConvolutionPadsItself) {
  Build b({1, 2, 5, 5});
  const ValueId padded = b.Op("Pad", {b.x, b.Ints({0, 0, 1, 2, 0, 0, 3, 0})});
  b.Out(b.Op("Conv", {padded, b.Floats({3, 2, 3, 3})}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}));
  EXPECT_EQ(b.Fires("fuse-pad"), 1);
  EXPECT_EQ(b.graph.nodes.size(), 1u);
  for (const int why : {0, 1, 2}) {
    Build no({1, 2, 5, 5});
    const ValueId value = why == 0 ? no.Scalar(1) : no.Scalar(0);
    const ValueId pads = why == 1 ? no.Ints({0, 1, 1, 1, 0, 0, 1, 1}) : no.Ints({0, 0, 1, 1, 0, 0, 1, 1});
    const ValueId y =
        no.Op("Pad", {no.x, pads, value}, {{"mode", std::string(why == 2 ? "reflect" : "constant")}});
    no.Out(no.Op("Conv", {y, no.Floats({3, why == 1 ? 3 : 2, 3, 3})}));
    EXPECT_EQ(no.Fires("fuse-pad"), 0) << why;
  }
}

TEST(Passes, AConvolutionDoesWhatFollowsIt) {
  const auto conv = [](Build& b) {
    return b.Op("Conv", {b.x, b.Floats({4, 4, 3, 3}), b.Floats({4})},
                {{"pads", std::vector<int64_t>{1, 1, 1, 1}}});
  };
  for (const char* op : {"Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "HardSigmoid"}) {
    Build b({1, 4, 6, 7});
    b.Out(b.Op(op, {conv(b)}));
    EXPECT_EQ(b.Fires("fuse-activation"), 1) << op;
    EXPECT_EQ(b.graph.nodes.size(), 1u) << op;
  }
  Build clip({1, 4, 6, 7});
  clip.Out(clip.Op("Clip", {conv(clip), clip.Scalar(0), clip.Scalar(0.5f)}));
  EXPECT_EQ(clip.Fires("fuse-activation"), 1);
  Build silu({1, 4, 6, 7});
  const ValueId y = conv(silu);
  silu.Out(silu.Op("Mul", {y, silu.Op("Sigmoid", {y})}));
  EXPECT_EQ(silu.Fires("fuse-activation"), 1);
  EXPECT_EQ(silu.graph.nodes.size(), 1u);
  Build residual({1, 4, 6, 7});
  const ValueId z = conv(residual);
  residual.graph.value(z).type = residual.graph.value(residual.x).type;
  residual.Out(residual.Op("Relu", {residual.Op("Add", {z, residual.x})}));
  EXPECT_EQ(residual.Fires("fuse-activation"), 2);
  EXPECT_EQ(residual.graph.nodes.size(), 1u);

  Build portable({1, 4, 6, 7});
  portable.Out(portable.Op("Relu", {conv(portable)}));
  EXPECT_EQ(portable.Fires("fuse-activation", {.portable = true}), 0);
  Build read_twice({1, 4, 6, 7});
  const ValueId w = conv(read_twice);
  read_twice.Out(read_twice.Op("Relu", {w}));
  read_twice.Out(w);
  EXPECT_EQ(read_twice.Fires("fuse-activation"), 0);
  Build broadcast({1, 4, 6, 7});  // what is added is repeated
  broadcast.Out(broadcast.Op("Add", {conv(broadcast), broadcast.Floats({4, 1, 1})}));
  EXPECT_EQ(broadcast.Fires("fuse-activation"), 0);
}

TEST(Passes, GeluIsRecovered) {
  for (const int order : {0, 1, 2}) {
    Build b({2, 8});
    const ValueId inside = order == 1 ? b.Op("Mul", {b.x, b.Scalar(static_cast<float>(M_SQRT1_2))})
                                      : b.Op("Div", {b.x, b.Scalar(static_cast<float>(M_SQRT2))});
    const ValueId sum = b.Op("Add", {b.Op("Erf", {inside}), b.Scalar(1)});
    const ValueId y = order == 0   ? b.Op("Mul", {b.Op("Mul", {b.x, sum}), b.Scalar(0.5f)})
                      : order == 1 ? b.Op("Mul", {b.Op("Mul", {b.Scalar(0.5f), b.x}), sum})
                                   : b.Op("Mul", {b.x, b.Op("Mul", {sum, b.Scalar(0.5f)})});
    b.Out(y);
    EXPECT_EQ(b.Fires("recover-gelu"), 1) << order;
    EXPECT_EQ(b.graph.nodes.size(), 1u);
  }
  Build other({2, 8});  // another factor
  const ValueId sum =
      other.Op("Add", {other.Op("Erf", {other.Op("Div", {other.x, other.Scalar(1.5f)})}), other.Scalar(1)});
  other.Out(other.Op("Mul", {other.Op("Mul", {other.x, sum}), other.Scalar(0.5f)}));
  EXPECT_EQ(other.Fires("recover-gelu"), 0);
}

ValueId WrittenNorm(Build& b, bool power, int64_t axis) {
  const auto mean = [&](ValueId v) { return b.Op("ReduceMean", {v, b.Ints({axis})}); };
  const ValueId d = b.Op("Sub", {b.x, mean(b.x)});
  const ValueId square = power ? b.Op("Pow", {d, b.Scalar(2)}) : b.Op("Mul", {d, d});
  const ValueId y = b.Op("Div", {d, b.Op("Sqrt", {b.Op("Add", {mean(square), b.Scalar(1e-5f)})})});
  return b.Op("Add", {b.Op("Mul", {y, b.Floats({8})}), b.Floats({8})});
}

TEST(Passes, LayerNormIsRecovered) {
  for (const bool power : {false, true}) {
    Build b({2, 5, 8});
    b.Out(WrittenNorm(b, power, -1));
    EXPECT_EQ(b.Fires("recover-layer-norm"), 1);
    EXPECT_EQ(b.graph.nodes.size(), 1u);
  }
  Build other({2, 5, 8});  // over another dimension
  other.Out(WrittenNorm(other, true, 1));
  EXPECT_EQ(other.Fires("recover-layer-norm"), 0);
}

TEST(Passes, CanBeLeftOutByName) {
  Build b({2, 3});
  b.Out(b.Op("Relu", {b.Op("Identity", {b.x})}));
  EXPECT_EQ(b.Fires("remove-identities", {.without = {"remove-identities"}}), 0);
  Graph graph;
  auto wrong = Optimize(&graph, {.without = {"fold-constant"}});
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message().find("fold-constants"), std::string::npos) << wrong.error().message();
}

}  // namespace
}  // namespace celer::graph
