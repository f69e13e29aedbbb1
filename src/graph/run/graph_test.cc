// The graph form, its checks, memory plans, and sessions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <numeric>
#include <random>

#include "base/source_dir.h"
#include "graph/ir/ir.h"
#include "graph/ir/operator_table.h"
#include "graph/run/memory_plan.h"
#include "graph/run/program.h"
#include "graph/run/session.h"

namespace celer::graph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ValueType Floats(std::vector<int64_t> dims) {
  ValueType type{.dtype = DType::kF32, .shape = std::vector<Dim>()};
  for (const int64_t dim : dims) type.shape->push_back({dim, dim < 0 ? "N" : ""});
  return type;
}
Node MakeNode(const std::string& op, std::vector<ValueId> inputs) {
  return {.op = op, .opset = 17, .inputs = std::move(inputs)};
}
ValueId Add(Graph& graph, const std::string& op, std::vector<ValueId> inputs, const std::string& output) {
  const std::string names[] = {output};
  return graph.AddNode(MakeNode(op, std::move(inputs)), names).outputs[0];
}
Constant Ints(const std::vector<int64_t>& values) {
  auto owned = std::make_shared<std::vector<int64_t>>(values);
  return {DType::kI64, Shape{static_cast<int64_t>(values.size())}, std::as_bytes(std::span(*owned)), owned};
}
std::shared_ptr<const Program> Compile(Graph graph) {
  Network network;
  network.graph = std::move(graph);
  auto program = Program::Make(std::move(network));
  EXPECT_TRUE(program) << program.error().message();
  return *program;
}
Data Numbers(std::vector<int64_t> dims, float first) {
  Data out = *NewTensor(DType::kF32, Shape(std::span<const int64_t>(dims)));
  std::iota(out.tensor.as<float>(), out.tensor.as<float>() + *out.tensor.shape.elements(), first);
  return out;
}
std::vector<float> Elements(const Data& data) {
  return {data.tensor.as<float>(), data.tensor.as<float>() + *data.tensor.shape.elements()};
}

TEST(Graph, PrintsWhatItHolds) {
  Graph graph;
  const ValueId x = graph.AddInput("x", Floats({-1, 3}));
  graph.outputs = {Add(graph, "Relu", {x}, "y")};
  EXPECT_EQ(Print(graph), "input %x: f32[N, 3]\n%y = Relu(%x)\nreturn %y\n");
}

TEST(Graph, SortsNodesAndFindsCycles) {
  Graph graph;
  const ValueId x = graph.AddInput("x", Floats({2})), late = graph.AddValue("late");
  graph.outputs = {Add(graph, "Relu", {late}, "y")};
  Node producer = MakeNode("Neg", {x});
  producer.outputs = {late};
  graph.nodes.push_back(producer);
  EXPECT_THAT(Verify(graph).error().message(), HasSubstr("reads 'late', which no node before it produces"));
  ASSERT_TRUE(graph.Sort());
  EXPECT_EQ(graph.nodes[0].op, "Neg");
  EXPECT_TRUE(Verify(graph));

  graph.nodes[0].inputs = {graph.outputs[0]};
  EXPECT_THAT(graph.Sort().error().message(), HasSubstr("cycle through"));
}

TEST(Graph, VerifyFindsValuesMadeTwiceOrNever) {
  Graph graph;
  const ValueId x = graph.AddInput("x", Floats({2}));
  graph.outputs = {Add(graph, "Relu", {x}, "y")};
  graph.nodes.push_back(graph.nodes[0]);
  EXPECT_THAT(Verify(graph).error().message(), HasSubstr("'y' has two producers"));
  graph.nodes.pop_back();
  graph.nodes[0].inputs = {77};
  EXPECT_THAT(Verify(graph).error().message(), HasSubstr("reads the value 77 of 2"));
  graph.nodes.clear();
  EXPECT_THAT(Verify(graph).error().message(), HasSubstr("'y' has no producer"));
}

TEST(Operators, EveryUnsupportedNodeIsNamedAtOnce) {
  Graph graph;
  ValueId x = graph.AddInput("x", Floats({2}));
  x = Add(graph, "Relux", {x}, "a");
  x = Add(graph, "Relux", {x}, "b");
  graph.outputs = {Add(graph, "ImageDecoder", {x}, "c")};
  const std::string message = CheckSupported(graph).error().message();
  EXPECT_THAT(message, HasSubstr("3 nodes of 2 operators cannot run"));
  EXPECT_THAT(message, HasSubstr("Relux (2 times, first 'a'): did you mean Relu?"));
  EXPECT_THAT(message, HasSubstr("ImageDecoder (once, first 'c'): decode images before the network"));
}

TEST(Operators, TheOpsetDecidesWhichRow) {
  EXPECT_NE(FindOperator("", "Gelu", 20), nullptr);
  EXPECT_EQ(FindOperator("", "Gelu", 19), nullptr);
  EXPECT_EQ(FindOperator("ai.onnx", "Gelu", 20), FindOperator("", "Gelu", 20));
}

TEST(Operators, TheDocumentIsUpToDate) {
  std::ifstream file(std::string(kSourceDir) + "/docs/operators.md");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(text, OperatorsMarkdown()) << "run: celer graph operators --markdown > docs/operators.md";
}

TEST(MemoryPlan, BlocksThatLiveTogetherDoNotOverlap) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<Block> blocks;
    for (int i = 0; i < 60; ++i) {
      const auto first = static_cast<int32_t>(random() % 40);
      blocks.push_back(
          {static_cast<int64_t>(1 + random() % 100) * 64, first, first + static_cast<int32_t>(random() % 6)});
    }
    const int64_t total = PlaceBlocks(blocks);
    for (size_t a = 0; a < blocks.size(); ++a) {
      EXPECT_LE(blocks[a].offset + blocks[a].bytes, total);
      for (size_t b = 0; b < a; ++b) {
        const bool together = blocks[a].first <= blocks[b].last && blocks[b].first <= blocks[a].last;
        const bool apart = blocks[a].offset + blocks[a].bytes <= blocks[b].offset ||
                           blocks[b].offset + blocks[b].bytes <= blocks[a].offset;
        EXPECT_TRUE(!together || apart) << a << " and " << b;
      }
    }
  }
}

// x -> Relu -> Neg -> Abs -> Reshape -> Add with x
std::shared_ptr<const Program> Chain() {
  Graph graph;
  const ValueId x = graph.AddInput("x", Floats({-1, 64}));
  const ValueId shape = graph.AddConstant("shape", Ints({-1, 64}));
  ValueId y = Add(graph, "Relu", {x}, "a");
  y = Add(graph, "Neg", {y}, "b");
  y = Add(graph, "Abs", {y}, "c");
  y = Add(graph, "Reshape", {y, shape}, "d");
  graph.outputs = {Add(graph, "Add", {y, x}, "y")};
  return Compile(std::move(graph));
}

TEST(MemoryPlan, AChainRunsInOnePieceOfMemory) {
  const auto program = Chain();
  const auto plan = PlanMemory(program->main(), {Numbers({8, 64}, 0)}, DefaultThreadPool(), program->packs());
  ASSERT_TRUE(plan) << plan.error().message();
  EXPECT_EQ(plan->naive_bytes, 4 * 8 * 64 * 4);
  EXPECT_EQ(plan->arena_bytes, 8 * 64 * 4);
  EXPECT_EQ(plan->live_bytes, plan->arena_bytes);
  EXPECT_EQ(plan->nodes[3].how, PlannedNode::How::kView);
}

TEST(Session, RunsAtSeveralShapesAndAgain) {
  Session session(Chain());
  for (const int64_t rows : {3, 100, 1, 3}) {
    const Data x = Numbers({rows, 64}, -50);
    const auto out = session.Run({x});
    ASSERT_TRUE(out) << out.error().message();
    const std::vector<float> in = Elements(x), y = Elements((*out)[0]);
    ASSERT_EQ(in.size(), y.size());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], std::max(in[i], 0.0f) + in[i]) << i;
  }
}

TEST(Session, ShapesAreComputedAheadOfTheRun) {
  Graph graph;
  const ValueId x = graph.AddInput("x", Floats({-1, -1, 4}));
  const ValueId first = graph.AddConstant("first", Ints({0})), rest = graph.AddConstant("rest", Ints({-1}));
  const ValueId shape = Add(graph, "Shape", {x}, "shape"),
                head = Add(graph, "Gather", {shape, first}, "head");
  const std::string names[] = {"both"};
  Node concat = MakeNode("Concat", {head, rest});
  concat.attributes = {{"axis", int64_t{0}}};
  const ValueId both = graph.AddNode(concat, names).outputs[0];
  graph.outputs = {Add(graph, "Reshape", {x, both}, "y")};
  const auto program = Compile(std::move(graph));
  const auto plan =
      PlanMemory(program->main(), {Numbers({2, 3, 4}, 0)}, DefaultThreadPool(), program->packs());
  ASSERT_TRUE(plan) << plan.error().message();
  for (size_t n = 0; n < 3; ++n) EXPECT_EQ(plan->nodes[n].how, PlannedNode::How::kFolded) << n;
  Session session(program);
  const auto out = session.Run({Numbers({2, 3, 4}, 5)});
  ASSERT_TRUE(out) << out.error().message();
  EXPECT_EQ((*out)[0].tensor.shape, (Shape{2, 12}));
  EXPECT_EQ(Elements((*out)[0])[23], 28.0f);
}

TEST(Session, ShapesThatComeWithTheDataWork) {
  Graph graph;
  const ValueId x = graph.AddInput("x", Floats({-1}));
  const ValueId where = Add(graph, "NonZero", {x}, "where");
  graph.outputs = {where, Add(graph, "Relu", {x}, "y")};
  Session session(Compile(std::move(graph)));
  Data data = Numbers({4}, -1);  // -1 0 1 2
  const auto out = session.Run({data});
  ASSERT_TRUE(out) << out.error().message();
  EXPECT_THAT(ReadInts((*out)[0].tensor), ElementsAre(0, 2, 3));
  EXPECT_THAT(Elements((*out)[1]), ElementsAre(0, 0, 1, 2));
}

// Where shapes come with the data, operands do too: what was packed for one run must not serve the next.
TEST(Session, NothingPackedForOneRunServesTheNext) {
  Graph graph;
  const ValueId a = graph.AddInput("a", Floats({8}));
  const ValueId shape = graph.AddInput("shape", {.dtype = DType::kI64, .shape = std::vector<Dim>{{3, ""}}});
  const ValueId b = graph.AddInput("b", Floats({1, 2, 2})), w = graph.AddInput("w", Floats({3, 2, 1}));
  const ValueId x = Add(graph, "Reshape", {a, shape}, "x");  // only the run knows its shape
  const ValueId b2 = Add(graph, "Neg", {b}, "b2");           // and this one is in the arena
  const ValueId w2 = Add(graph, "Relu", {w}, "w2");
  graph.outputs = {Add(graph, "MatMul", {x, b}, "y0"), Add(graph, "MatMul", {x, b2}, "y1"),
                   Add(graph, "Conv", {x, w2}, "y2")};
  Session session(Compile(std::move(graph)));
  Data dims = *NewTensor(DType::kI64, Shape{3});
  for (size_t i = 0; i < 3; ++i) dims.tensor.as<int64_t>()[i] = std::vector<int64_t>{2, 2, 2}[i];
  const Data ones = Numbers({8}, 0), matrix = Numbers({1, 2, 2}, 0), weights = Numbers({3, 2, 1}, 0);
  std::fill_n(ones.tensor.as<float>(), 8, 1.0f);
  for (const float value : {1.0f, 3.0f, 0.5f}) {  // each time in the same memory
    std::fill_n(matrix.tensor.as<float>(), 4, value);
    std::fill_n(weights.tensor.as<float>(), 6, value);
    const auto out = session.Run({ones, dims, matrix, weights});
    ASSERT_TRUE(out) << out.error().message();
    EXPECT_EQ(Elements((*out)[0])[0], 2 * value);
    EXPECT_EQ(Elements((*out)[1])[0], -2 * value);
    EXPECT_EQ(Elements((*out)[2])[0], 2 * value);
  }
}

TEST(Session, InputsAreChecked) {
  Session session(Chain());
  EXPECT_THAT(session.Run({}).error().message(), HasSubstr("0 inputs are given, and the network has 1"));
  EXPECT_THAT(session.Run({Numbers({2, 63}, 0)}).error().message(),
              HasSubstr("the input 'x' is f32[N, 64], and [2, 63] is given"));
  EXPECT_THAT(session.Run({*NewTensor(DType::kI32, Shape{2, 64})}).error().message(),
              HasSubstr("the input 'x' is f32, and i32 is given"));
}

TEST(Session, BadShapesAndIndicesAreOneSentence) {
  Graph graph;
  const ValueId x = graph.AddInput("x", Floats({-1, 4}));
  const ValueId indices = graph.AddConstant("indices", Ints({0, 9}));
  Node gather = MakeNode("Gather", {x, indices});
  gather.name = "pick";
  const std::string names[] = {"y"};
  graph.outputs = {graph.AddNode(gather, names).outputs[0]};
  Session session(Compile(std::move(graph)));
  EXPECT_EQ(session.Run({Numbers({3, 4}, 0)}).error().message(),
            "Gather 'pick': the index 9 is outside of 3 elements");
}

TEST(MakeShape, RefusesWhatCannotBe) {
  EXPECT_FALSE(MakeShape(std::vector<int64_t>{2, -1}));
  EXPECT_FALSE(MakeShape(std::vector<int64_t>(9, 1)));
  EXPECT_FALSE(MakeShape(std::vector<int64_t>{int64_t{1} << 40, int64_t{1} << 40}));
  EXPECT_FALSE(MakeShape(std::vector<int64_t>{int64_t{1} << 62, 0, int64_t{1} << 62}));
  EXPECT_TRUE(MakeShape(std::vector<int64_t>{3, 0, 5}));
}

}  // namespace
}  // namespace celer::graph
