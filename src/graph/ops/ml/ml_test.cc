// Trees, encoders and packed weights whose attributes lie, each refused in one sentence; and what is computed
// for those that do not. Random ones stand beside ONNX Runtime's in tests/networks/ml_test.py and
// microsoft_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "graph/ir/operator_table.h"
#include "graph/load/microsoft/expansion.h"
#include "graph/load/string_table.h"
#include "graph/passes/pass.h"
#include "graph/run/program.h"
#include "graph/run/session.h"

namespace celer::graph {
namespace {

using ::testing::HasSubstr;
using Attributes = std::vector<std::pair<std::string, Attribute>>;
using Int64s = std::vector<int64_t>;
using MlFloats = std::vector<float>;
using MlStrings = std::vector<std::string>;

// One node on x, f32[2, 3], and constants of f32.
struct MlModel {
  std::string domain, op;
  Attributes attributes = {};
  std::vector<Int64s> constants = {};  // shapes
  size_t outputs = 1;
};

Network MlNetwork(const MlModel& model) {
  Network network;
  network.opset = 17;
  Graph& graph = network.graph;
  Node node{
      .op = model.op, .domain = model.domain, .name = "lie", .opset = 1, .attributes = model.attributes};
  node.inputs.push_back(
      graph.AddInput("x", {.dtype = DType::kF32, .shape = std::vector<Dim>{{2, ""}, {3, ""}}}));
  for (const Int64s& dims : model.constants) {
    const Shape shape{std::span<const int64_t>(dims)};
    auto numbers = std::make_shared<MlFloats>(static_cast<size_t>(*shape.elements()), 0.5f);
    const auto bytes = std::as_bytes(std::span<const float>(*numbers));
    node.inputs.push_back(
        graph.AddConstant("c" + std::to_string(node.inputs.size()), {DType::kF32, shape, bytes, numbers}));
  }
  MlStrings names;
  for (size_t i = 0; i < model.outputs; ++i) names.push_back("y" + std::to_string(i));
  graph.AddNode(std::move(node), names);
  graph.outputs = graph.nodes[0].outputs;
  return network;
}

// What it gives for x = {{0, 1, 2}, {3, 4, 5}}, or why it does not.
Result<std::vector<Data>> RunMl(const MlModel& model) {
  Network network = MlNetwork(model);
  Texts texts;
  CELER_ASSIGN(network.texts, ResolveTexts(&network.graph, &texts));
  CELER_RETURN_IF_ERROR(ExpandMicrosoft(&network.graph));
  CELER_RETURN_IF_ERROR(Verify(network.graph));
  CELER_RETURN_IF_ERROR(CheckSupported(network.graph));
  CELER_ASSIGN([[maybe_unused]] const auto reports, Optimize(&network.graph));
  CELER_ASSIGN(const auto program, Program::Make(std::move(network)));
  Session session(program);
  CELER_ASSIGN(Data x, NewTensor(DType::kF32, Shape{2, 3}));
  for (int i = 0; i < 6; ++i) x.tensor.as<float>()[i] = static_cast<float>(i);
  CELER_ASSIGN(std::vector<Data> out, session.Run({x}));
  std::vector<Data> kept;
  for (const Data& data : out) {  // they lie in the session
    CELER_ASSIGN(Data copy, NewTensor(data.tensor.dtype, data.tensor.shape));
    std::memcpy(copy.tensor.data, data.tensor.data,
                static_cast<size_t>(*BytesFor(data.tensor.dtype, *data.tensor.shape.elements())));
    kept.push_back(std::move(copy));
  }
  return kept;
}

// x[1] <= 2 ? 10 : 20
Attributes Stump() {
  return {{"nodes_treeids", Int64s{0, 0, 0}},      {"nodes_nodeids", Int64s{0, 1, 2}},
          {"nodes_featureids", Int64s{1, 0, 0}},   {"nodes_modes", MlStrings{"BRANCH_LEQ", "LEAF", "LEAF"}},
          {"nodes_values", MlFloats{2, 0, 0}},     {"nodes_truenodeids", Int64s{1, 0, 0}},
          {"nodes_falsenodeids", Int64s{2, 0, 0}}, {"target_treeids", Int64s{0, 0}},
          {"target_nodeids", Int64s{1, 2}},        {"target_ids", Int64s{0, 0}},
          {"target_weights", MlFloats{10, 20}},    {"n_targets", int64_t{1}}};
}
Attributes WithAttribute(Attributes attributes, const std::string& key, Attribute value) {
  std::erase_if(attributes, [&](const auto& one) { return one.first == key; });
  attributes.emplace_back(key, std::move(value));
  return attributes;
}
constexpr const char* kMlName = "ai.onnx.ml";
constexpr const char* kMsName = "com.microsoft";

TEST(Trees, AStumpDecides) {
  const auto out = RunMl({kMlName, "TreeEnsembleRegressor", Stump()});
  ASSERT_TRUE(out) << out.error().message();
  EXPECT_EQ((*out)[0].tensor.as<float>()[0], 10);
  EXPECT_EQ((*out)[0].tensor.as<float>()[1], 20);
}

// More rows than walk together, and trees of one leaf.
TEST(Trees, LabelsOfStringsArePlacesInTheListOfTexts) {
  Attributes trees = Stump();
  std::erase_if(trees,
                [](const auto& one) { return one.first.starts_with("target") || one.first == "n_targets"; });
  for (const auto& [key, value] : Attributes{{"class_treeids", Int64s{0, 0}},
                                             {"class_nodeids", Int64s{1, 2}},
                                             {"class_ids", Int64s{0, 2}},
                                             {"class_weights", MlFloats{1, 1}},
                                             {"classlabels_strings", MlStrings{"low", "middle", "high"}}})
    trees.emplace_back(key, value);
  Network network = MlNetwork({kMlName, "TreeEnsembleClassifier", trees, {}, 2});
  Texts texts;
  const auto ports = ResolveTexts(&network.graph, &texts);
  ASSERT_TRUE(ports) << ports.error().message();
  EXPECT_THAT(*ports->all, ::testing::ElementsAre("low", "middle", "high"));
  EXPECT_EQ(ports->outputs, (std::vector<bool>{true, false}));
  const auto out = RunMl({kMlName, "TreeEnsembleClassifier", trees, {}, 2});
  ASSERT_TRUE(out) << out.error().message();
  EXPECT_EQ((*out)[0].tensor.as<int64_t>()[0], 0);
  EXPECT_EQ((*out)[0].tensor.as<int64_t>()[1], 2);
}

TEST(Trees, ZipMapNamesColumns) {
  Network network = MlNetwork({kMlName, "ZipMap", {{"classlabels_strings", MlStrings{"a", "b", "c"}}}});
  Texts texts;
  const auto ports = ResolveTexts(&network.graph, &texts);
  ASSERT_TRUE(ports) << ports.error().message();
  EXPECT_EQ(network.graph.nodes[0].op, "Identity");
  EXPECT_THAT(ports->classes[0], ::testing::ElementsAre("a", "b", "c"));
}

struct MlLie {
  const char* name;
  MlModel model;
  const char* says;
};
const MlLie kMlLies[] = {
    {"no_trees", {kMlName, "TreeEnsembleRegressor"}, "no trees"},
    {"a_child_that_is_not_there",
     {kMlName, "TreeEnsembleRegressor", WithAttribute(Stump(), "nodes_truenodeids", Int64s{9, 0, 0})},
     "leads to node 9"},
    {"a_cycle",
     {kMlName, "TreeEnsembleRegressor",
      WithAttribute(WithAttribute(Stump(), "nodes_modes", MlStrings{"BRANCH_LEQ", "BRANCH_LT", "LEAF"}),
                    "nodes_truenodeids", Int64s{1, 1, 0})},
     "have a cycle"},
    {"all_in_a_ring",
     {kMlName, "TreeEnsembleRegressor", WithAttribute(Stump(), "nodes_falsenodeids", Int64s{0, 0, 0})},
     "have a cycle"},
    {"a_feature_behind_the_end",
     {kMlName, "TreeEnsembleRegressor", WithAttribute(Stump(), "nodes_featureids", Int64s{3, 0, 0})},
     "look at 4"},
    {"a_negative_feature",
     {kMlName, "TreeEnsembleRegressor", WithAttribute(Stump(), "nodes_featureids", Int64s{-1, 0, 0})},
     "the feature -1"},
    {"too_few_values",
     {kMlName, "TreeEnsembleRegressor", WithAttribute(Stump(), "nodes_values", MlFloats{1})},
     "nodes_values"},
    {"a_mode_of_its_own",
     {kMlName, "TreeEnsembleRegressor",
      WithAttribute(Stump(), "nodes_modes", MlStrings{"BRANCH_MAYBE", "LEAF", "LEAF"})},
     "BRANCH_MAYBE"},
    {"a_target_behind_the_end",
     {kMlName, "TreeEnsembleRegressor", WithAttribute(Stump(), "target_ids", Int64s{0, 1})},
     "target 1"},
    {"targets_without_end",
     {kMlName, "TreeEnsembleRegressor", WithAttribute(Stump(), "n_targets", int64_t{1} << 60)},
     "targets"},
    {"an_unknown_sum",
     {kMlName, "TreeEnsembleRegressor", WithAttribute(Stump(), "aggregate_function", std::string("MEDIAN"))},
     "MEDIAN"},
    {"a_classifier_without_labels", {kMlName, "TreeEnsembleClassifier", Stump(), {}, 2}, ""},
    {"coefficients_that_do_not_fit",
     {kMlName, "LinearRegressor", {{"coefficients", MlFloats{1, 2}}, {"targets", int64_t{1}}}},
     "2 coefficients"},
    {"targets_that_overflow",
     {kMlName, "LinearRegressor", {{"coefficients", MlFloats{1, 2, 3}}, {"targets", INT64_MAX}}},
     "coefficients"},
    {"a_classifier_without_rho",
     {kMlName, "SVMClassifier", {{"classlabels_ints", Int64s{0, 1}}, {"coefficients", MlFloats{1}}}, {}, 2},
     "rho"},
    {"support_vectors_without_end",
     {kMlName, "SVMRegressor", {{"rho", MlFloats{0}}, {"n_supports", INT64_MAX}}},
     "n_supports"},
    {"support_vectors_that_are_not_there",
     {kMlName,
      "SVMRegressor",
      {{"rho", MlFloats{0}}, {"n_supports", int64_t{5}}, {"coefficients", MlFloats{1}}}},
     "support vectors"},
    {"an_unknown_kernel",
     {kMlName, "SVMRegressor", {{"rho", MlFloats{0}}, {"kernel_type", std::string("LAPLACE")}}},
     "LAPLACE"},
    {"scales_that_do_not_fit",
     {kMlName, "Scaler", {{"scale", MlFloats{1, 2}}, {"offset", MlFloats{0}}}},
     "scale has 2"},
    {"no_scale", {kMlName, "Scaler"}, "scale has 0"},
    {"an_unknown_norm", {kMlName, "Normalizer", {{"norm", std::string("L7")}}}, "L7"},
    {"nothing_to_impute", {kMlName, "Imputer"}, "imputed_value_floats"},
    {"an_encoder_without_keys", {kMlName, "LabelEncoder"}, "0 keys"},
    {"keys_without_values", {kMlName, "LabelEncoder", {{"keys_floats", MlFloats{1}}}}, "1 keys for 0 values"},
    {"keys_of_strings_for_numbers",
     {kMlName, "LabelEncoder", {{"keys_strings", MlStrings{"a"}}, {"values_int64s", Int64s{1}}}},
     "keys of i64"},
    {"no_categories", {kMlName, "OneHotEncoder"}, "no categories"},
    {"columns_of_reals", {kMlName, "ArrayFeatureExtractor", {}, {{2}}}, "i64"},
    {"dimensions_that_are_negative", {kMlName, "FeatureVectorizer", {{"inputdimensions", Int64s{-4}}}}, "-4"},
    {"a_zip_map_of_two", {kMlName, "ZipMap", {}, {{1}}}, "takes and gives one"},
    {"weights_of_three_bits",
     {kMsName, "MatMulNBits", {{"K", int64_t{3}}, {"N", int64_t{1}}, {"bits", int64_t{3}}}, {{1}, {1}}},
     "3 bits"},
    {"weights_without_end",
     {kMsName, "MatMulNBits", {{"K", int64_t{3}}, {"N", INT64_MAX}}, {{1}, {1}}},
     "N = "},
    {"blocks_of_seven",
     {kMsName, "MatMulNBits", {{"K", int64_t{3}}, {"N", int64_t{1}}, {"block_size", int64_t{7}}}, {{1}, {1}}},
     "block_size is 7"},
    {"no_heads", {kMsName, "MultiHeadAttention", {}, {{2, 3}, {2, 3}}}, "num_heads is 0"},
    {"heads_that_do_not_divide",
     {kMsName, "Attention", {{"num_heads", int64_t{2}}}, {{3, 9}, {9}}},
     "2 heads do not divide"},
    {"sizes_that_overflow",
     {kMsName,
      "Attention",
      {{"num_heads", int64_t{1}}, {"qkv_hidden_sizes", Int64s{INT64_MAX, 1, 1}}},
      {{3, 9}, {9}}},
     "Split"},
    {"weights_that_are_no_matrix",
     {kMsName, "Attention", {{"num_heads", int64_t{1}}}, {{9}}},
     "no constant matrix"},
    {"an_activation_of_its_own",
     {kMsName, "FusedGemm", {{"activation", std::string("Wiggle")}}, {{3, 4}}},
     "Wiggle"},
    {"a_pool_without_a_window", {kMsName, "NhwcMaxPool"}, "a window of 0 dimensions"},
    {"a_convolution_of_nothing", {kMsName, "FusedConv"}, "Conv"},
    {"an_opset_that_is_none",
     {kMsName, "QLinearSoftmax", {{"opset", INT64_MAX}}, {{}, {}, {}, {}}},
     "an opset of"},
    {"queries_of_two_dimensions",
     {kMsName, "GroupQueryAttention", {{"num_heads", int64_t{1}}}, {{1}, {1}, {1}, {1}, {1}, {1}}},
     "queries of [2, 3]"},
};

class MlLies : public ::testing::TestWithParam<MlLie> {};
TEST_P(MlLies, IsRefusedInOneSentence) {
  const auto out = RunMl(GetParam().model);
  ASSERT_FALSE(out);
  EXPECT_THAT(out.error().message(), HasSubstr(GetParam().says));
}
INSTANTIATE_TEST_SUITE_P(All, MlLies, ::testing::ValuesIn(kMlLies),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace celer::graph
