// Passes that make operators of celer's own: each fires where it should, changes nothing that is computed,
// and does not fire where it must not.
#include <cmath>

#include "graph/ir/operator.h"
#include "graph/passes/build_graph.h"

namespace celer::graph {
namespace {

using testing::Build;

TEST(Fusing, SwishIsRecovered) {
  Build silu({2, 3, 8});
  silu.Out(silu.Op("Mul", {silu.Op("Sigmoid", {silu.x}), silu.x}));
  EXPECT_EQ(silu.Fires("recover-swish"), 1);
  EXPECT_EQ(silu.Count("Swish"), 1);
  EXPECT_EQ(silu.graph.nodes.size(), 1u);

  const auto clip = [](Build& b, float high) {
    return b.Op("Clip", {b.Op("Add", {b.x, b.Scalar(3)}), b.Scalar(0), b.Scalar(high)});
  };
  Build divided({2, 3, 8});
  divided.Out(divided.Op("Div", {divided.Op("Mul", {divided.x, clip(divided, 6)}), divided.Scalar(6)}));
  EXPECT_EQ(divided.Fires("recover-swish"), 1);
  EXPECT_EQ(divided.Count("HardSwish"), 1);
  EXPECT_EQ(divided.graph.nodes.size(), 1u);
  Build gate({2, 3, 8});
  gate.Out(gate.Op("Mul", {clip(gate, 6), gate.Scalar(1.0f / 6)}));
  EXPECT_EQ(gate.Fires("recover-swish"), 1);
  EXPECT_EQ(gate.Count("HardSigmoid"), 1);
  Build product({2, 3, 8});
  product.Out(product.Op(
      "Mul", {product.x, product.Op("HardSigmoid", {product.x}, {{"alpha", 1.0f / 6}, {"beta", 0.5f}})}));
  EXPECT_EQ(product.Fires("recover-swish"), 1);
  EXPECT_EQ(product.Count("HardSwish"), 1);

  Build other({2, 3, 8});  // another bound
  other.Out(other.Op("Div", {other.Op("Mul", {other.x, clip(other, 5)}), other.Scalar(6)}));
  EXPECT_EQ(other.Fires("recover-swish"), 0);
  Build slope({2, 3, 8});  // another slope
  slope.Out(slope.Op("Mul", {slope.x, slope.Op("HardSigmoid", {slope.x})}));
  EXPECT_EQ(slope.Fires("recover-swish"), 0);
  Build read_twice({2, 3, 8});
  const ValueId s = read_twice.Op("Sigmoid", {read_twice.x});
  read_twice.Out(read_twice.Op("Mul", {s, read_twice.x}));
  read_twice.Out(s);
  EXPECT_EQ(read_twice.Fires("recover-swish"), 0);
  Build apart({2, 3, 8});  // of another value
  apart.Out(apart.Op("Mul", {apart.Op("Sigmoid", {apart.Op("Exp", {apart.x})}), apart.x}));
  EXPECT_EQ(apart.Fires("recover-swish"), 0);
}

TEST(Fusing, AProductDoesWhatFollowsIt) {
  Build b({3, 5, 8});
  ValueId y = b.Op("Add", {b.Floats({6}), b.Op("MatMul", {b.x, b.Floats({8, 6})})});
  b.Out(b.Op("Gelu", {y}, {}, 20));
  EXPECT_EQ(b.Fires("fuse-product"), 2);
  EXPECT_EQ(b.graph.nodes.size(), 1u);
  Build residual({3, 5, 8});
  y = residual.Op("Add",
                  {residual.Op("MatMul", {residual.x, residual.Floats({8, 8})}), residual.Floats({8})});
  residual.Out(residual.Op("Relu", {residual.Op("Add", {residual.x, y})}));
  EXPECT_EQ(residual.Fires("fuse-product"), 3);
  EXPECT_EQ(residual.graph.nodes.size(), 1u);
  for (const bool transposed : {false, true}) {
    Build gemm({5, 8});
    const ValueId weights = transposed ? gemm.Floats({6, 8}) : gemm.Floats({8, 6});
    gemm.Out(gemm.Op("HardSwish", {gemm.Op("Gemm", {gemm.x, weights, gemm.Floats({6})},
                                           {{"transB", int64_t{transposed ? 1 : 0}}})}));
    EXPECT_EQ(gemm.Fires("fuse-product"), 1) << transposed;
    EXPECT_EQ(gemm.graph.nodes.size(), 1u);
  }

  Build scaled({5, 8});  // a factor that the fused one does not have
  scaled.Out(scaled.Op("Relu", {scaled.Op("Gemm", {scaled.x, scaled.Floats({8, 6})}, {{"alpha", 0.5f}})}));
  EXPECT_EQ(scaled.Fires("fuse-product"), 0);
  Build changing({4, 4});  // weights that are not constant
  changing.Out(changing.Op("Relu", {changing.Op("MatMul", {changing.x, changing.Op("Exp", {changing.x})})}));
  EXPECT_EQ(changing.Fires("fuse-product"), 0);
  Build read_twice({5, 8});
  const ValueId z = read_twice.Op("MatMul", {read_twice.x, read_twice.Floats({8, 6})});
  read_twice.Out(read_twice.Op("Relu", {z}));
  read_twice.Out(z);
  EXPECT_EQ(read_twice.Fires("fuse-product"), 0);
  Build column({5, 8});  // one number per row is no bias, and not like the result
  column.Out(
      column.Op("Add", {column.Op("MatMul", {column.x, column.Floats({8, 6})}), column.Floats({5, 1})}));
  EXPECT_EQ(column.Fires("fuse-product"), 0);
  Build portable({5, 8});
  portable.Out(portable.Op("Relu", {portable.Op("MatMul", {portable.x, portable.Floats({8, 6})})}));
  EXPECT_EQ(portable.Fires("fuse-product", {.portable = true}), 0);
}

// [batch, heads, tokens, width] three times, made of one input.
struct Heads {
  ValueId q, k, v;
};
Heads HeadsOf(Build& b, int64_t tokens, int64_t heads, int64_t width) {
  const auto split = [&](std::vector<int64_t> perm) {
    const int64_t all = heads * width;
    const ValueId y = b.Op("MatMul", {b.x, b.Floats({all, all})});
    const ValueId parts = b.Op("Reshape", {y, b.Ints({1, tokens, heads, width})});
    return b.Op("Transpose", {parts}, {{"perm", std::move(perm)}});
  };
  return {split({0, 2, 1, 3}), split({0, 2, 3, 1}), split({0, 2, 1, 3})};
}

TEST(Fusing, AttentionIsRecovered) {
  for (const int form : {0, 1, 2, 3}) {
    Build b({1, 7, 12});
    const Heads h = HeadsOf(b, 7, 3, 4);
    ValueId scores =
        form == 1 ? b.Op("MatMul", {b.Op("Mul", {h.q, b.Scalar(0.7f)}), h.k}) : b.Op("MatMul", {h.q, h.k});
    if (form == 2) scores = b.Op("Div", {scores, b.Scalar(2)});
    if (form >= 2)
      scores = b.Op("Add", {scores, b.Floats(form == 2 ? std::vector<int64_t>{1, 1, 1, 7}
                                                       : std::vector<int64_t>{3, 7, 7})});
    const ValueId y =
        b.Op("MatMul", {b.Op("Softmax", {scores}, {{"axis", int64_t{form == 3 ? 3 : -1}}}), h.v});
    b.Out(b.Op("Reshape",
               {b.Op("Transpose", {y}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}}), b.Ints({1, 7, 12})}));
    EXPECT_EQ(b.Fires("recover-attention"), 1) << form;
    EXPECT_EQ(b.Count("Attention"), 1);
    EXPECT_EQ(b.Count("Softmax"), 0);
  }

  for (const int why : {0, 1, 2}) {
    Build no({1, 7, 12});
    const Heads h = HeadsOf(no, 7, 3, 4);
    ValueId scores = no.Op("MatMul", {h.q, h.k});
    // A mask that makes more scores, another axis, scores that someone else reads.
    if (why == 0) scores = no.Op("Add", {scores, no.Floats({2, 1, 1, 7})});
    const ValueId p = no.Op("Softmax", {scores}, {{"axis", int64_t{why == 1 ? 2 : -1}}});
    no.Out(no.Op("MatMul", {p, h.v}));
    if (why == 2) no.Out(p);
    EXPECT_EQ(no.Fires("recover-attention"), 0) << why;
  }
}

// A zero point of this type, and a scale.
ValueId Zero(Build& b, DType dtype) {
  auto zero = std::make_shared<std::vector<uint8_t>>(1, uint8_t{3});
  return b.graph.AddConstant("zero" + std::to_string(b.graph.values.size()),
                             {dtype, Shape(std::vector<int64_t>{}), std::as_bytes(std::span(*zero)), zero});
}

TEST(Fusing, WholeNumbersStayWhole) {
  for (const bool moved : {false, true}) {
    Build b({4, 6});
    const ValueId zero = Zero(b, DType::kU8), scale = b.Scalar(0.05f);
    const auto q = [&](ValueId v) { return b.Op("QuantizeLinear", {v, scale, zero}); };
    const auto dq = [&](ValueId v) { return b.Op("DequantizeLinear", {v, scale, zero}); };
    ValueId y = dq(q(b.x));
    if (moved) y = b.Op("Transpose", {y}, {{"perm", std::vector<int64_t>{1, 0}}});
    b.Out(dq(q(y)));
    EXPECT_EQ(b.Fires("cancel-quantize"), 1) << moved;
    EXPECT_EQ(b.Count("QuantizeLinear"), 1);
  }
  for (const int why : {0, 1, 2}) {
    Build no({4, 6});
    const ValueId zero = Zero(no, DType::kU8), scale = no.Scalar(0.05f);
    ValueId y = no.Op("QuantizeLinear", {no.x, scale, zero});
    y = no.Op("DequantizeLinear", {y, scale, zero});
    if (why == 1) y = no.Op("Relu", {y});  // changes numbers
    // Another scale, another type.
    y = no.Op("QuantizeLinear",
              {y, why == 0 ? no.Scalar(0.06f) : scale, why == 2 ? Zero(no, DType::kI8) : zero});
    no.Out(no.Op("DequantizeLinear", {y, scale, why == 2 ? Zero(no, DType::kI8) : zero}));
    EXPECT_EQ(no.Fires("cancel-quantize"), 0) << why;
  }
}

TEST(Fusing, WhatIsAddedMayTurnOutLarger) {
  // The batch of what is added is open, and stood for one size while passes ran: a run with another must be
  // right all the same.
  Build b({2, 4, 5, 5});
  const ValueId conv = b.Op("Conv", {b.x, b.Floats({4, 4, 1, 1})});
  ValueType open{.dtype = DType::kF32, .shape = std::vector<Dim>{{-1, "n"}, {4, ""}, {5, ""}, {5, ""}}};
  const ValueId other = b.graph.AddInput("other", open);
  b.Out(b.Op("Relu", {b.Op("Add", {conv, other})}));
  Graph plain = b.graph;
  ASSERT_TRUE(Optimize(&b.graph));
  EXPECT_EQ(b.graph.nodes.size(), 1u);
  for (const int64_t batch : {int64_t{1}, int64_t{2}}) {
    std::vector<std::vector<float>> outputs;
    for (const Graph& graph : {plain, b.graph}) {
      Network network;
      network.graph = graph;
      auto program = Program::Make(std::move(network));
      ASSERT_TRUE(program) << program.error().message();
      Session session(*program);
      Data x = *NewTensor(DType::kF32, Shape{2, 4, 5, 5}), y = *NewTensor(DType::kF32, Shape{batch, 4, 5, 5});
      for (Data* const data : {&x, &y})
        for (int64_t i = 0; i < *data->tensor.shape.elements(); ++i)
          data->tensor.as<float>()[i] = std::sin(static_cast<float>(i));
      auto out = session.Run({x, y});
      ASSERT_TRUE(out) << out.error().message();
      const float* const from = (*out)[0].tensor.as<float>();
      outputs.emplace_back(from, from + *(*out)[0].tensor.shape.elements());
    }
    ASSERT_EQ(outputs[0].size(), outputs[1].size());
    for (size_t i = 0; i < outputs[0].size(); ++i) EXPECT_NEAR(outputs[0][i], outputs[1][i], 1e-5);
  }
}

}  // namespace
}  // namespace celer::graph
