// Networks that lie, each refused in one clear sentence: when it is loaded, when it is planned, or at the
// latest when it runs. Files that are broken as files are in load_onnx_test.cc, load_pnnx_test.cc and
// io/npy/store_zip_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <new>
#include <ostream>

#include "graph/ir/call_operator.h"
#include "graph/load/load_onnx.h"
#include "graph/load/write_onnx.h"
#include "graph/passes/pass.h"
#include "graph/run/program.h"
#include "graph/run/session.h"

namespace celer::graph {
namespace {

using Attributes = std::vector<std::pair<std::string, Attribute>>;
using Int64s = std::vector<int64_t>;

// One node on an input x of f32[1, 2, 4, 4], and constants.
struct Lie {
  const char* name;
  const char* op;
  Attributes attributes;
  std::vector<std::pair<Int64s, Int64s>> constants;  // shape and numbers, i64
  const char* says;
  Int64s shape = {1, 2, 4, 4};
  int opset = 17;
  bool float_constants = false;
};

void PrintTo(const Lie& lie, std::ostream* out) {
  *out << lie.name;
}

Constant ConstantOf(const Int64s& shape, const Int64s& numbers, bool floats) {
  if (floats) {
    auto copy = std::make_shared<std::vector<float>>(numbers.begin(), numbers.end());
    const auto bytes = std::as_bytes(std::span<const float>(*copy));
    return {DType::kF32, Shape(std::span<const int64_t>(shape)), bytes, std::move(copy)};
  }
  auto copy = std::make_shared<Int64s>(numbers);
  const auto bytes = std::as_bytes(std::span<const int64_t>(*copy));
  return {DType::kI64, Shape(std::span<const int64_t>(shape)), bytes, std::move(copy)};
}

Network Make(const Lie& lie) {
  Network network;
  network.opset = lie.opset;
  Graph& graph = network.graph;
  ValueType type{.dtype = DType::kF32, .shape = std::vector<Dim>()};
  for (const int64_t dim : lie.shape) type.shape->push_back({dim, ""});
  Node node{.op = lie.op, .name = "lie", .opset = lie.opset, .attributes = lie.attributes};
  node.inputs.push_back(graph.AddInput("x", type));
  for (size_t i = 0; i < lie.constants.size(); ++i)
    node.inputs.push_back(
        graph.AddConstant("c" + std::to_string(i),
                          ConstantOf(lie.constants[i].first, lie.constants[i].second, lie.float_constants)));
  const std::string output = "y";
  graph.AddNode(std::move(node), std::span(&output, 1));
  graph.outputs.push_back(graph.nodes[0].outputs[0]);
  return network;
}

// "" if it ran.
std::string Refusal(Network network, const Int64s& shape) {
  auto program = Program::Make(std::move(network));
  if (!program) return program.error().message();
  Session session(*program);
  Data x = *NewTensor(DType::kF32, Shape(std::span<const int64_t>(shape)));
  std::fill_n(x.tensor.as<float>(), *x.tensor.shape.elements(), 0.0f);
  const auto out = session.Run({x});
  return out ? "" : out.error().message();
}

const Lie kLies[] = {
    {"gather_behind_the_end", "Gather", {{"axis", int64_t{1}}}, {{{1}, {2}}}, "index"},
    {"gather_far_before_the_start", "Gather", {{"axis", int64_t{1}}}, {{{1}, {-3}}}, "index"},
    {"gather_axis_is_the_rank", "Gather", {{"axis", int64_t{4}}}, {{{1}, {0}}}, "axis"},
    {"gather_nd_behind_the_end", "GatherND", {}, {{{1, 2}, {0, 9}}}, "index"},
    {"concat_axis_is_the_rank", "Concat", {{"axis", int64_t{4}}}, {}, "axis"},
    {"softmax_axis_is_the_rank", "Softmax", {{"axis", int64_t{4}}}, {}, "axis"},
    {"transpose_of_an_axis_twice",
     "Transpose",
     {{"perm", Int64s{0, 1, 1, 3}}},
     {},
     "the axis 1 is given twice"},
    {"transpose_of_too_few", "Transpose", {{"perm", Int64s{0, 1}}}, {}, "perm"},
    {"reshape_to_more_elements", "Reshape", {}, {{{2}, {5, 7}}}, "elements"},
    {"reshape_that_overflows", "Reshape", {}, {{{2}, {int64_t{1} << 62, 8}}}, "elements"},
    {"reshape_with_two_unknowns", "Reshape", {}, {{{2}, {-1, -1}}}, "leaves two dimensions open"},
    {"reshape_to_negative", "Reshape", {}, {{{2}, {-2, 16}}}, "-2"},
    {"expand_that_does_not_fit", "Expand", {}, {{{4}, {1, 3, 4, 4}}}, "broadcast"},
    {"expand_to_petabytes", "Expand", {}, {{{5}, {int64_t{1} << 50, 1, 2, 4, 4}}}, "too many elements"},
    {"tile_to_petabytes", "Tile", {}, {{{4}, {int64_t{1} << 50, 1, 1, 1}}}, "too many elements"},
    {"slice_without_a_step", "Slice", {}, {{{1}, {0}}, {{1}, {1}}, {{1}, {1}}, {{1}, {0}}}, "step"},
    {"slice_of_an_axis_there_is_not", "Slice", {}, {{{1}, {0}}, {{1}, {1}}, {{1}, {9}}}, "axis"},
    {"split_that_does_not_add_up", "Split", {{"axis", int64_t{1}}}, {{{1}, {7}}}, "do not make up axis 1"},
    {"unsqueeze_twice_the_same", "Unsqueeze", {}, {{{2}, {0, 0}}}, "the axis 0 is given twice"},
    {"squeeze_of_a_long_axis", "Squeeze", {}, {{{1}, {1}}}, "1"},
    {"pad_to_less_than_nothing", "Pad", {}, {{{8}, {0, 0, -9, 0, 0, 0, 0, 0}}}, "Pad"},
    {"pad_with_too_few_numbers", "Pad", {}, {{{2}, {1, 1}}}, "pads"},
    {"pool_without_a_kernel", "MaxPool", {}, {}, "a window of 0 dimensions"},
    {"pool_of_nothing", "MaxPool", {{"kernel_shape", Int64s{0, 0}}}, {}, "a window of 0 on a dimension of 4"},
    {"pool_that_stands_still",
     "AveragePool",
     {{"kernel_shape", Int64s{2, 2}}, {"strides", Int64s{0, 1}}},
     {},
     "stride"},
    {"pool_larger_than_its_input",
     "MaxPool",
     {{"kernel_shape", Int64s{9, 9}}},
     {},
     "a window of 9 does not fit 4 elements"},
    {"pool_with_negative_pads",
     "MaxPool",
     {{"kernel_shape", Int64s{2, 2}}, {"pads", Int64s{-1, 0, 0, 0}}},
     {},
     "pad"},
    {"conv_of_other_channels",
     "Conv",
     {},
     {{{1, 3, 1, 1}, {1, 1, 1}}},
     "weights of [1, 3, 1, 1] in 1 groups",
     {1, 2, 4, 4},
     17,
     true},
    {"conv_in_three_groups",
     "Conv",
     {{"group", int64_t{3}}},
     {{{1, 2, 1, 1}, {1, 1}}},
     "group",
     {1, 2, 4, 4},
     17,
     true},
    {"conv_in_no_group",
     "Conv",
     {{"group", int64_t{0}}},
     {{{1, 2, 1, 1}, {1, 1}}},
     "group",
     {1, 2, 4, 4},
     17,
     true},
    {"transposed_conv_to_less_than_nothing",
     "ConvTranspose",
     {{"output_shape", Int64s{std::numeric_limits<int64_t>::min(), 4}}},
     {{{2, 1, 1, 1}, {1, 1}}},
     "an output dimension of -9223372036854775808",
     {1, 2, 4, 4},
     17,
     true},
    {"conv_that_stands_still",
     "Conv",
     {{"strides", Int64s{0, 0}}},
     {{{1, 2, 1, 1}, {1, 1}}},
     "stride",
     {1, 2, 4, 4},
     17,
     true},
    {"conv_with_a_short_bias",
     "Conv",
     {},
     {{{1, 2, 1, 1}, {1, 1}}, {{3}, {1, 1, 1}}},
     "bias",
     {1, 2, 4, 4},
     17,
     true},
    {"conv_that_says_another_kernel",
     "Conv",
     {{"kernel_shape", Int64s{3, 3}}},
     {{{1, 2, 1, 1}, {1, 1}}},
     "kernel",
     {1, 2, 4, 4},
     17,
     true},
    {"conv_with_a_huge_dilation",
     "Conv",
     {{"dilations", Int64s{int64_t{1} << 62, 1}}, {"kernel_shape", Int64s{2, 1}}},
     {{{1, 2, 2, 1}, {1, 1, 1, 1}}},
     "",
     {1, 2, 4, 4},
     17,
     true},
    {"resize_beyond_all_memory",
     "Resize",
     {},
     {{{0}, {}}, {{4}, {1, 1, 30000000, 1000}}},
     "bytes; this machine has",
     {1, 2, 4, 4},
     17,
     true},
    {"matmul_that_does_not_fit",
     "MatMul",
     {},
     {{{5, 2}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}},
     "5",
     {1, 2, 4, 4},
     17,
     true},
    {"add_that_does_not_fit", "Add", {}, {{{3}, {1, 1, 1}}}, "broadcast", {1, 2, 4, 4}, 17, true},
    {"norm_of_other_channels",
     "InstanceNormalization",
     {},
     {{{3}, {1, 1, 1}}, {{3}, {1, 1, 1}}},
     "3",
     {1, 2, 4, 4},
     17,
     true},
    {"depth_to_space_of_nothing", "DepthToSpace", {{"blocksize", int64_t{0}}}, {}, "block"},
    {"depth_to_space_that_does_not_divide", "DepthToSpace", {{"blocksize", int64_t{3}}}, {}, "block"},
    {"top_more_than_there_are", "TopK", {{"axis", int64_t{-1}}}, {{{1}, {9}}}, "9"},
    {"reduce_of_an_axis_there_is_not", "ReduceSum", {}, {{{1}, {4}}}, "axis"},
    {"arg_of_an_axis_there_is_not", "ArgMax", {{"axis", int64_t{-5}}}, {}, "axis"},
    {"flatten_behind_the_end", "Flatten", {{"axis", int64_t{5}}}, {}, "axis"},
    {"one_input_too_few", "Conv", {}, {}, "inputs"},
    {"operator_nobody_knows", "FancyOp", {}, {}, "FancyOp"},
    {"affine_grid_of_minus_one", "AffineGrid", {}, {{{4}, {-1, 1, 2, 2}}}, "theta", {1, 2, 3}, 20},
    {"depth_to_space_of_nothing_to_petabytes",
     "DepthToSpace",
     {{"blocksize", int64_t{1} << 20}},
     {},
     "too many elements",
     {1, 0, int64_t{1} << 20, 1}},
    {"space_to_depth_of_nothing_to_petabytes",
     "SpaceToDepth",
     {{"blocksize", int64_t{1} << 20}},
     {},
     "too many elements",
     {1, int64_t{1} << 20, 0, 0}},
    {"deform_conv_in_groups_of_nothing",
     "DeformConv",
     {{"offset_group", int64_t{1} << 62}},
     {{{2, 0, 1, 1}, {}}, {{1, 0, 4, 4}, {}}},
     "an offset_group of",
     {1, 0, 4, 4},
     19,
     true},
    {"conv_in_groups_of_nothing",
     "Conv",
     {{"group", int64_t{1} << 62}},
     {{{0, 0, 1, 1}, {}}},
     "a group of",
     {1, 0, 4, 4},
     17,
     true},
    {"attention_of_too_many_heads_of_nothing",
     "Attention",
     {{"q_num_heads", int64_t{1} << 61}, {"kv_num_heads", int64_t{1} << 61}},
     {{{1, 3, 0}, {}}, {{1, 3, 0}, {}}},
     "heads for queries of",
     {1, 3, 0},
     23,
     true},
    {"rotary_embedding_of_too_many_heads_of_nothing",
     "RotaryEmbedding",
     {{"num_heads", int64_t{1} << 61}},
     {{{1, 3, 0}, {}}, {{1, 3, 0}, {}}},
     "heads for",
     {1, 3, 0},
     23,
     true},
    {"group_norm_in_groups_of_nothing",
     "GroupNormalization",
     {{"num_groups", int64_t{1} << 62}},
     {{{0}, {}}, {{0}, {}}},
     "groups of 0 channels",
     {2, 0, 4},
     21,
     true},
    {"pad_by_the_least_number", "Pad", {}, {{{8}, {INT64_MIN, 0, 0, 0, 0, 0, 0, 0}}}, "a pad of"},
    {"reverse_axes_that_add_up",
     "ReverseSequence",
     {{"batch_axis", INT64_MAX}, {"time_axis", INT64_MIN}},
     {{{2}, {1, 1}}},
     "batch_axis"},
    {"split_that_adds_up_by_wrapping", "Split", {}, {{{1}, {INT64_MIN}}}, "do not make up axis"},
    {"einsum_of_nothing", "Einsum", {{"equation", std::string("ij,->")}}, {}, "has 2 terms for 1 inputs"},
};

class Hostile : public testing::TestWithParam<Lie> {};

TEST_P(Hostile, IsRefusedInOneSentence) {
  const Lie& lie = GetParam();
  const std::string message = Refusal(Make(lie), lie.shape);
  EXPECT_NE(message, "");
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 400u) << message;
  EXPECT_THAT(message, testing::HasSubstr(lie.says));
  EXPECT_THAT(message, testing::HasSubstr(lie.op));
  RecordProperty("message", message);
}

// Passes see the graph before shapes are checked: they must leave what they do not understand.
TEST_P(Hostile, PassesLeaveItAlone) {
  const Lie& lie = GetParam();
  Network network = Make(lie);
  if (!Optimize(&network.graph)) return;
  EXPECT_NE(Refusal(std::move(network), lie.shape), "");
}

// And the writer writes what is there, so that another program may say what is wrong with it.
TEST_P(Hostile, IsWrittenAndReadAgain) {
  const Lie& lie = GetParam();
  const auto bytes = ToOnnx(Make(lie));
  ASSERT_TRUE(bytes) << bytes.error().message();
  auto again = LoadOnnx(std::as_bytes(std::span(*bytes)), "again.onnx");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_NE(Refusal(std::move(*again), lie.shape), "");
}

// An empty tensor takes no memory: nothing else bounds the dimensions that kernels loop over.
TEST(HostileShapes, EmptyTensorsWithHugeDimensionsAreRefused) {
  for (const Int64s& dims : {Int64s{1, 0, int64_t{1} << 43, 1}, Int64s{0, INT64_MAX, INT64_MAX}}) {
    const auto shape = MakeShape(dims);
    ASSERT_FALSE(shape);
    EXPECT_THAT(shape.error().message(), testing::HasSubstr("too"));
  }
  EXPECT_TRUE(MakeShape({0, 3, 4096, 4096}));
  EXPECT_TRUE(HasDims(Shape{2, 3}, {2, 3}));
  EXPECT_FALSE(HasDims(Shape{2, 3}, {2, -3}));
  const Lie relu{
      .name = "relu", .op = "Relu", .attributes = {}, .constants = {}, .says = "", .shape = {0, 1}};
  Network network = Make(relu);
  network.graph.value(network.graph.inputs[0]).type.shape.reset();
  EXPECT_THAT(Refusal(std::move(network), {0, int64_t{1} << 43}), testing::HasSubstr("too large"));
}

constexpr Operator kThrows = {.name = "Throws", .types = kAnyType};

Status ThrowOnEveryThread(KernelContext& c) {
  c.pool.ParallelFor(1000, 1, [](int64_t, int64_t) { throw std::bad_alloc(); });
  return {};
}

TEST(CallOperator, MemoryThatCannotBeHadIsAnError) {
  ThreadPool pool(ThreadPool::Options{.threads = 3});
  const Node node{.op = "Throws"};
  std::vector<Data> out = {*NewTensor(DType::kF32, Shape{2})};
  KernelContext context(node, {}, out, pool, nullptr);
  const Status status = RunKernel(kThrows, ThrowOnEveryThread, context);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Error::Code::kOutOfMemory);
  EXPECT_THAT(status.error().message(), testing::HasSubstr("memory"));
}

TEST(CallOperator, KernelsThatHaveNothingToWriteAreNotCalled) {
  ThreadPool pool(ThreadPool::Options{.threads = 1});
  const Node node{.op = "Throws"};
  std::vector<Data> out = {*NewTensor(DType::kF32, Shape{0, 7})};
  KernelContext context(node, {}, out, pool, nullptr);
  EXPECT_TRUE(RunKernel(kThrows, ThrowOnEveryThread, context));
}

INSTANTIATE_TEST_SUITE_P(All, Hostile, testing::ValuesIn(kLies),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace celer::graph
