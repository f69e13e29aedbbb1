// What operators make of values and places at the edges: NaN, places outside of an image, starts outside of a
// tensor, outputs of a length that is not whole. Expected numbers are ONNX Runtime's (and torch's where they
// say so); tests/conformance/onnxruntime_test.py compares many more with it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "graph/ops/fourier.h"
#include "graph/run/program.h"
#include "graph/run/session.h"

namespace celer::graph {
namespace {

using EdgeAttributes = std::vector<std::pair<std::string, Attribute>>;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct EdgeInput {
  std::vector<int64_t> dims;
  std::vector<float> floats;
  std::vector<int64_t> ints = {};  // instead of floats; a constant
};

// The outputs of one node, all as doubles.
std::vector<std::vector<double>> RunEdge(const char* op, int opset, const std::vector<EdgeInput>& inputs,
                                         EdgeAttributes attributes, size_t outputs = 1) {
  Network network;
  network.opset = opset;
  Graph& graph = network.graph;
  Node node{.op = op, .name = "node", .opset = opset, .attributes = std::move(attributes)};
  std::vector<Data> data;
  for (const EdgeInput& input : inputs) {
    const std::string name = "x" + std::to_string(graph.values.size());
    const Shape shape{std::span<const int64_t>(input.dims)};
    if (!input.ints.empty()) {
      auto copy = std::make_shared<std::vector<int64_t>>(input.ints);
      const auto bytes = std::as_bytes(std::span<const int64_t>(*copy));
      node.inputs.push_back(graph.AddConstant(name, {DType::kI64, shape, bytes, std::move(copy)}));
      continue;
    }
    ValueType type{.dtype = DType::kF32, .shape = std::vector<Dim>()};
    for (const int64_t dim : input.dims) type.shape->push_back({dim, ""});
    node.inputs.push_back(graph.AddInput(name, type));
    data.push_back(*NewTensor(DType::kF32, shape));
    std::copy(input.floats.begin(), input.floats.end(), data.back().tensor.as<float>());
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < outputs; ++i) names.push_back("y" + std::to_string(i));
  graph.outputs = graph.AddNode(std::move(node), names).outputs;
  auto program = Program::Make(std::move(network));
  EXPECT_TRUE(program) << program.error().message();
  if (!program) return {};
  Session session(*program);
  const auto got = session.Run(data);
  EXPECT_TRUE(got) << got.error().message();
  std::vector<std::vector<double>> out;
  if (!got) return out;
  for (const Data& one : *got) {
    out.emplace_back();
    for (int64_t i = 0; i < *one.tensor.shape.elements(); ++i)
      out.back().push_back(one.tensor.dtype == DType::kI64 ? static_cast<double>(one.tensor.as<int64_t>()[i])
                                                           : double{one.tensor.as<float>()[i]});
  }
  return out;
}

void ExpectNumbers(const std::vector<std::vector<double>>& got, const std::vector<double>& want,
                   double near) {
  ASSERT_FALSE(got.empty());
  ASSERT_EQ(got[0].size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]))
      EXPECT_TRUE(std::isnan(got[0][i])) << i << ": " << got[0][i];
    else if (std::isinf(want[i]))
      EXPECT_EQ(got[0][i], want[i]) << i;
    else
      EXPECT_NEAR(got[0][i], want[i], near) << i;
  }
}

// Each of the 16 elements is brought inside on its own; the place itself stays outside.
TEST(EdgeValues, CubicSamplesBeyondTheBorder) {
  const EdgeInput image{{1, 1, 4, 4}, {1, 4, 2, 8, 5, 7, 3, 9, 6, 2, 8, 1, 4, 3, 7, 5}};
  const EdgeInput grid{{1, 1, 3, 2}, {-1.2f, 0.3f, 0.9f, 1.4f, -0.95f, -0.95f}};
  for (const int64_t corners : {0, 1})
    ExpectNumbers(RunEdge("GridSample", 20, {image, grid},
                          {{"mode", std::string("cubic")},
                           {"padding_mode", std::string("border")},
                           {"align_corners", corners}}),
                  corners ? std::vector<double>{6.461886, 5.552718, 1.424111}
                          : std::vector<double>{5.924550, 4.779500, 0.232336},
                  1e-5);
}

// 4 · 1.7 = 6.8 elements: the last of the 6 lies on the last of the 4.
TEST(EdgeValues, CornersOfAnOutputOfAFractionalLength) {
  const EdgeInput row{{1, 1, 1, 4}, {1, 2, 4, 8}}, none{{0}, {}}, scales{{4}, {1, 1, 1, 1.7f}};
  const auto resized = [&](const char* mode) {
    return RunEdge(
        "Resize", 19, {row, none, scales},
        {{"mode", std::string(mode)}, {"coordinate_transformation_mode", std::string("align_corners")}});
  };
  ExpectNumbers(resized("linear"), {1, 1.6, 2.4, 3.6, 5.6, 8}, 1e-5);
  ExpectNumbers(resized("cubic"), {1, 1.396, 2.352, 3.288, 5.768, 8}, 1e-5);
}

TEST(EdgeValues, SlicesBackwardsFromBeforeTheBeginning) {
  const EdgeInput row{{4}, {10, 11, 12, 13}};
  const auto sliced = [&](int64_t start, int64_t end, int64_t step) {
    const auto one = [](int64_t n) { return EdgeInput{{1}, {}, {n}}; };
    return RunEdge("Slice", 13, {row, one(start), one(end), one(0), one(step)}, {});
  };
  ExpectNumbers(sliced(-9, -10, -1), {10}, 0);
  ExpectNumbers(sliced(-9, INT64_MIN, -2), {10}, 0);
  ExpectNumbers(sliced(9, -9, -1), {13, 12, 11, 10}, 0);
  ExpectNumbers(sliced(-9, 0, -1), {}, 0);
  ExpectNumbers(sliced(INT64_MAX, INT64_MIN, INT64_MIN), {13}, 0);
}

TEST(EdgeValues, NaNStaysNaN) {
  ExpectNumbers(RunEdge("Celu", 12, {{{4}, {kNaN, 1, -kInf, kInf}}}, {}), {kNaN, 1, -1, kInf}, 1e-6);
  const EdgeInput data{{4}, {1, kNaN, 3, 4}}, at{{3, 1}, {}, {0, 1, 2}}, updates{{3}, {kNaN, 0, 9}};
  const auto scattered = [&](const char* how) {
    return RunEdge("ScatterND", 18, {data, at, updates}, {{"reduction", std::string(how)}});
  };
  ExpectNumbers(scattered("max"), {kNaN, kNaN, 9, 4}, 0);
  ExpectNumbers(scattered("min"), {kNaN, kNaN, 3, 4}, 0);
}

// NaN is larger than every number, as torch and numpy sort it; ONNX Runtime leaves its place open.
TEST(EdgeValues, TheLargestIsNaN) {
  const EdgeInput row{{5}, {2, kNaN, kInf, -1, kNaN}};
  const auto top = [&](int64_t k, int64_t largest) {
    return RunEdge("TopK", 11, {row, {{1}, {}, {k}}}, {{"largest", largest}}, 2);
  };
  ExpectNumbers(top(3, 1), {kNaN, kNaN, kInf}, 0);
  EXPECT_EQ(top(3, 1)[1], (std::vector<double>{1, 4, 2}));
  ExpectNumbers(top(5, 0), {-1, 2, kInf, kNaN, kNaN}, 0);
  EXPECT_EQ(top(5, 0)[1], (std::vector<double>{3, 0, 2, 1, 4}));
}

TEST(Fourier, IsTheSumOfTurnsForAnyLength) {
  for (const int64_t n : {1, 2, 3, 5, 8, 12, 31, 64, 100, 127}) {
    std::vector<double> x, got(static_cast<size_t>(2 * n)), back(static_cast<size_t>(2 * n));
    for (int64_t i = 0; i < 2 * n; ++i) x.push_back(static_cast<double>(i * 37 % 23) - 11);
    Fourier(n, false).Transform(x, got);
    for (int64_t k = 0; k < n; ++k) {
      double re = 0, im = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double angle = -2 * std::numbers::pi * static_cast<double>(i * k % n) / static_cast<double>(n);
        const double a = x[2 * i], b = x[2 * i + 1];
        re += a * std::cos(angle) - b * std::sin(angle);
        im += a * std::sin(angle) + b * std::cos(angle);
      }
      EXPECT_NEAR(got[2 * k], re, 1e-10 * static_cast<double>(n)) << n;
      EXPECT_NEAR(got[2 * k + 1], im, 1e-10 * static_cast<double>(n)) << n;
    }
    Fourier(n, true).Transform(got, back);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 1e-10 * static_cast<double>(n)) << n;
  }
}

}  // namespace
}  // namespace celer::graph
