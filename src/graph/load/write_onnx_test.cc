#include "graph/load/write_onnx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/source_dir.h"
#include "graph/load/load_onnx.h"
#include "graph/load/load_pnnx.h"
#include "graph/load/unify_opsets.h"
#include "graph/passes/build_graph.h"
#include "graph/passes/pass.h"
#include "graph/run/program.h"
#include "graph/run/session.h"
#include "io/file/test_folder.h"

namespace celer::graph {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kRoot = kSourceDir;

Constant FloatConstant(const std::vector<int64_t>& shape, const std::vector<float>& numbers) {
  auto copy = std::make_shared<std::vector<float>>(numbers);
  const auto bytes = std::as_bytes(std::span<const float>(*copy));
  return {DType::kF32, Shape(std::span<const int64_t>(shape)), bytes, std::move(copy)};
}

ValueType F32(std::initializer_list<int64_t> dims) {
  ValueType type{.dtype = DType::kF32, .shape = std::vector<Dim>()};
  for (const int64_t dim : dims) type.shape->push_back({dim, dim < 0 ? "n" : ""});
  return type;
}

// y = op(x)
Network One(Node node, int opset, ValueType type) {
  Network network;
  network.opset = opset;
  node.opset = opset;
  node.inputs.insert(node.inputs.begin(), network.graph.AddInput("x", std::move(type)));
  const std::string y = "y";
  network.graph.AddNode(std::move(node), std::span(&y, 1));
  network.graph.outputs = {network.graph.nodes[0].outputs[0]};
  return network;
}

Network Again(const Network& network) {
  const auto bytes = ToOnnx(network);
  EXPECT_TRUE(bytes) << bytes.error().message();
  // The result views these bytes.
  static std::vector<std::unique_ptr<std::string>> kept;
  kept.push_back(std::make_unique<std::string>(*bytes));
  auto again = LoadOnnx(std::as_bytes(std::span(*kept.back())), "again.onnx");
  EXPECT_TRUE(again) << again.error().message();
  return std::move(*again);
}

TEST(WriteOnnx, EveryNetworkOfTheCorpusComesBackAsItWas) {
  int compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "tests/fuzz/corpus/onnx")) {
    SCOPED_TRACE(entry.path().filename().string());
    const auto network = LoadOnnx(entry.path());
    if (!network) continue;
    const Network again = Again(*network);
    EXPECT_EQ(again.opset, network->opset);
    // Constants stand in another order among the values; nodes, ports and types are the same.
    EXPECT_EQ(again.graph.nodes.size(), network->graph.nodes.size());
    for (size_t n = 0; n < again.graph.nodes.size(); ++n) {
      const Node &a = again.graph.nodes[n], &b = network->graph.nodes[n];
      EXPECT_EQ(a.op, b.op);
      EXPECT_EQ(a.inputs.size(), b.inputs.size());
      EXPECT_EQ(a.attributes.size(), b.attributes.size());
      for (size_t i = 0; i < a.inputs.size(); ++i)
        if (a.inputs[i] != kNoValue) {
          EXPECT_EQ(ToString(again.graph.value(a.inputs[i]).type),
                    ToString(network->graph.value(b.inputs[i]).type));
        }
      EXPECT_EQ(a.Subgraphs().size(), b.Subgraphs().size());
    }
    for (const auto list : {&Graph::inputs, &Graph::outputs}) {
      ASSERT_EQ((again.graph.*list).size(), (network->graph.*list).size());
      for (size_t i = 0; i < (again.graph.*list).size(); ++i) {
        const Value &a = again.graph.value((again.graph.*list)[i]),
                    &b = network->graph.value((network->graph.*list)[i]);
        EXPECT_EQ(a.name, b.name);
        EXPECT_EQ(ToString(a.type), ToString(b.type));
      }
    }
    ++compared;
  }
  EXPECT_GT(compared, 15);
}

TEST(WriteOnnx, LargeWeightsGoIntoASecondFile) {
  TestFolder folder;
  Network network = One({.op = "Add"}, 17, F32({256}));
  std::vector<float> numbers(256);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  network.graph.nodes[0].inputs.push_back(network.graph.AddConstant("w", FloatConstant({256}, numbers)));
  const auto path = folder.path() / "m.onnx";
  ASSERT_TRUE(WriteOnnx(network, path, {.external_above = 100}));
  EXPECT_EQ(std::filesystem::file_size(folder.path() / "m.onnx.data"), 1024u);
  EXPECT_LT(std::filesystem::file_size(path), 500u);
  const auto again = LoadOnnx(path);
  ASSERT_TRUE(again) << again.error().message();
  for (const Value& value : again->graph.values)
    if (value.constant) {
      EXPECT_EQ(FloatsOf(*value.constant), numbers);
    }
  ASSERT_TRUE(WriteOnnx(network, path));
  EXPECT_GT(std::filesystem::file_size(path), 1024u);
}

TEST(WriteOnnx, NamesThatMeetAreToldApart) {
  Network network = One({.op = "Relu"}, 17, F32({2}));
  Graph& graph = network.graph;
  // Two values of one name, and one without: files want names, and each once.
  const std::string names[] = {"x"};
  graph.AddNode({.op = "Neg", .opset = 17, .inputs = {graph.outputs[0]}}, names);
  Node& last = graph.AddNode({.op = "Abs", .opset = 17, .inputs = {graph.nodes[1].outputs[0]}}, names);
  last.outputs = {graph.AddValue("")};
  graph.outputs = {graph.nodes[2].outputs[0]};
  graph.value(graph.outputs[0]).name = "y2";
  const Network again = Again(network);
  EXPECT_EQ(again.graph.nodes.size(), 3u);
  EXPECT_EQ(again.graph.value(again.graph.inputs[0]).name, "x");
  EXPECT_EQ(again.graph.value(again.graph.outputs[0]).name, "y2");
}

TEST(WriteOnnx, AnInputThatIsAnOutputGetsANode) {
  Network network = One({.op = "Relu"}, 17, F32({2}));
  network.graph.outputs.push_back(network.graph.inputs[0]);
  network.graph.outputs.push_back(network.graph.outputs[0]);
  const Network again = Again(network);
  EXPECT_EQ(again.graph.outputs.size(), 3u);
  EXPECT_EQ(again.graph.nodes.size(), 3u);
}

TEST(WriteOnnx, OpenDimensionsKeepTheirNames) {
  const Network again = Again(One({.op = "Relu"}, 17, F32({-1, 3})));
  EXPECT_EQ(ToString(again.graph.value(again.graph.inputs[0]).type), "f32[n, 3]");
}

TEST(WriteOnnx, CelersOwnOperatorsAreRefused) {
  const auto bytes = ToOnnx(One({.op = "Conv", .domain = "celer", .name = "c"}, 1, F32({1, 1, 4, 4})));
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().message(), "Conv 'c' is celer's own, and no other program knows it");
}

// --- opsets ---

TEST(UnifyOpsets, NothingChangesWhereAllAgree) {
  Network network = One({.op = "Softmax"}, 11, F32({2, 3}));
  EXPECT_EQ(*UnifyOpsets(&network.graph, 11), 11);
  EXPECT_EQ(network.graph.nodes[0].opset, 11);
}

TEST(UnifyOpsets, AttributesThatBecameInputsAreMoved) {
  Network network =
      One({.op = "Squeeze", .attributes = {{"axes", std::vector<int64_t>{0}}}}, 11, F32({1, 3}));
  const std::string z = "z";
  network.graph.AddNode({.op = "Gelu", .opset = 20, .inputs = {network.graph.outputs[0]}}, std::span(&z, 1));
  network.graph.outputs = {network.graph.nodes[1].outputs[0]};
  EXPECT_EQ(*UnifyOpsets(&network.graph, 11), 20);
  const Node& squeeze = network.graph.nodes[0];
  EXPECT_TRUE(squeeze.attributes.empty());
  ASSERT_EQ(squeeze.inputs.size(), 2u);
  EXPECT_EQ(ReadInts(network.graph.value(squeeze.inputs[1]).constant->view()), std::vector<int64_t>{0});
  const Network again = Again(network);
  EXPECT_EQ(again.opset, 20);
}

TEST(UnifyOpsets, WhatMeansSomethingElseIsRefused) {
  Network network = One({.op = "Resize", .name = "s"}, 10, F32({2, 3, 4}));
  const std::string z = "z";
  network.graph.AddNode({.op = "Gelu", .opset = 20, .inputs = {network.graph.outputs[0]}}, std::span(&z, 1));
  const auto opset = UnifyOpsets(&network.graph, 10);
  ASSERT_FALSE(opset);
  EXPECT_EQ(opset.error().message(),
            "Resize 's' of opset 10 means something else in opset 20, which other nodes need");
}

// Whose rank the file does not say, since another node makes it.
TEST(UnifyOpsets, TheRankOfASoftmaxIsFoundOut) {
  for (const bool last : {true, false}) {
    Network network = One({.op = "Relu"}, 11, last ? F32({2, 3}) : F32({2, 3, 4}));
    const std::string y = "soft", z = "z";
    Graph& graph = network.graph;
    const ValueId soft =
        graph.AddNode({.op = "Softmax", .opset = 11, .inputs = {graph.outputs[0]}}, std::span(&y, 1))
            .outputs[0];
    graph.AddNode({.op = "Gelu", .opset = 20, .inputs = {soft}}, std::span(&z, 1));
    graph.outputs = {graph.nodes[2].outputs[0]};
    EXPECT_EQ(*UnifyOpsets(&graph, 11), 20);
    EXPECT_EQ(graph.nodes.size(), last ? 3u : 6u);
  }
}

// Over several dimensions at once, as before opset 13.
TEST(UnifyOpsets, ASoftmaxOverSeveralDimensionsMeansTheSame) {
  testing::Build b({2, 3, 4, 5});
  for (const int64_t axis : {int64_t{1}, int64_t{2}, int64_t{-2}})
    b.Out(b.Op("Softmax", {b.x}, {{"axis", axis}}, 11));
  b.Out(b.Op("Gelu", {b.x}, {}, 20));
  ASSERT_TRUE(b.graph.Sort());
  const auto before = b.Run();
  EXPECT_EQ(*UnifyOpsets(&b.graph, 11), 20);
  EXPECT_TRUE(Verify(b.graph));
  EXPECT_EQ(b.Count("Flatten"), 3);
  const auto after = b.Run();
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_EQ(before[i].size(), after[i].size());
    for (size_t k = 0; k < before[i].size(); ++k) EXPECT_NEAR(before[i][k], after[i][k], 1e-6);
  }
}

// A softmax over the last dimension is the same in all opsets.
TEST(UnifyOpsets, ASoftmaxOverTheLastDimensionStays) {
  Network network = One({.op = "Softmax"}, 11, F32({2, 3}));
  const std::string z = "z";
  network.graph.AddNode({.op = "Gelu", .opset = 20, .inputs = {network.graph.outputs[0]}}, std::span(&z, 1));
  network.graph.outputs = {network.graph.nodes[1].outputs[0]};
  EXPECT_EQ(*UnifyOpsets(&network.graph, 11), 20);
  EXPECT_EQ(network.graph.nodes[0].Int("axis", 0), -1);
}

}  // namespace
}  // namespace celer::graph
