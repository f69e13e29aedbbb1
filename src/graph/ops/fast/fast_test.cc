// Fast kernels beside the reference kernels of their operators.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "graph/ir/operator_table.h"
#include "graph/run/memory_plan.h"

namespace celer::graph {
namespace {

class RandomNumbers {
 public:
  Data Of(const std::vector<int64_t>& dims) {
    Data out = *NewTensor(DType::kF32, Shape(std::span<const int64_t>(dims)));
    for (int64_t i = 0; i < *out.tensor.shape.elements(); ++i)
      out.tensor.as<float>()[i] = std::normal_distribution<float>(0, 0.5f)(random_);
    return out;
  }

 private:
  std::mt19937 random_{11};
};

struct Ran {
  std::string kernel;  // "reference" where no fast one fits
  std::vector<std::vector<float>> outputs;
};

// Runs a node of which all inputs are known.
Ran RunNode(const Node& node, const std::vector<Data>& inputs, size_t outputs, bool fast, int threads = 1) {
  Ran ran{.kernel = "reference", .outputs = {}};
  std::vector<const Data*> in;
  for (const Data& data : inputs) in.push_back(&data);
  std::vector<InferContext::Output> types(outputs);
  InferContext infer(node, in, types);
  const Operator* const op = FindOperator(node);
  const Status inferred = op->infer(infer);
  EXPECT_TRUE(inferred) << inferred.error().message();
  if (!inferred) return ran;
  std::vector<Data> out;
  for (const auto& type : types) out.push_back(*NewTensor(type.dtype, type.shape));
  ThreadPool pool({.threads = threads});
  PackCache packs;
  KernelContext run(node, in, out, pool, nullptr);
  const FastKernel* const kernel = fast ? ChooseKernel(*op, infer) : nullptr;
  Prepared prepared;
  if (kernel && kernel->prepare) prepared = kernel->prepare(infer, threads, packs);
  AlignedVector<std::byte> workspace(static_cast<size_t>(prepared.workspace_bytes));
  run.state = prepared.state.get();
  run.workspace = workspace.data();
  const Status status = kernel ? kernel->run(run) : op->reference(run);
  EXPECT_TRUE(status) << status.error().message();
  if (kernel) ran.kernel = kernel->name;
  for (const Data& data : out)
    ran.outputs.emplace_back(data.tensor.as<float>(),
                             data.tensor.as<float>() + *data.tensor.shape.elements());
  return ran;
}

void ExpectNear(const Ran& fast, const Ran& reference, double tolerance, const std::string& what) {
  ASSERT_EQ(fast.outputs.size(), reference.outputs.size()) << what;
  for (size_t o = 0; o < fast.outputs.size(); ++o) {
    ASSERT_EQ(fast.outputs[o].size(), reference.outputs[o].size()) << what;
    for (size_t i = 0; i < fast.outputs[o].size(); ++i)
      ASSERT_NEAR(fast.outputs[o][i], reference.outputs[o][i], tolerance)
          << what << ", output " << o << " at " << i;
  }
}

struct RecurrentCase {
  std::string op;
  int gates;
  int64_t steps, batch, input, hidden;
  std::string direction = "forward";
  int64_t layout = 0, reset_after = 0;
  bool bias = true, initial = true;
};

class RecurrentKernel : public testing::TestWithParam<RecurrentCase> {};

// Values stay within -1 and 1, and each step forgets a part of what was wrong in the one before.
TEST_P(RecurrentKernel, IsWhatTheReferenceGives) {
  const RecurrentCase& p = GetParam();
  const int64_t directions = p.direction == "bidirectional" ? 2 : 1, width = p.gates * p.hidden;
  Node node{.op = p.op, .opset = 14, .attributes = {{"hidden_size", p.hidden}, {"direction", p.direction}}};
  node.attributes.emplace_back("layout", p.layout);
  if (p.op == "GRU") node.attributes.emplace_back("linear_before_reset", p.reset_after);
  RandomNumbers numbers;
  const auto state = [&] {
    return p.layout ? numbers.Of({p.batch, directions, p.hidden})
                    : numbers.Of({directions, p.batch, p.hidden});
  };
  std::vector<Data> inputs = {
      p.layout ? numbers.Of({p.batch, p.steps, p.input}) : numbers.Of({p.steps, p.batch, p.input}),
      numbers.Of({directions, width, p.input}), numbers.Of({directions, width, p.hidden})};
  inputs.push_back(p.bias ? numbers.Of({directions, 2 * width}) : Data{});
  inputs.push_back({});
  inputs.push_back(p.initial ? state() : Data{});
  if (p.op == "LSTM") inputs.push_back(p.initial ? state() : Data{});
  const size_t outputs = p.op == "LSTM" ? 3 : 2;
  const Ran reference = RunNode(node, inputs, outputs, false);
  for (const int threads : {1, 3}) {
    const Ran fast = RunNode(node, inputs, outputs, true, threads);
    EXPECT_EQ(fast.kernel, "gemm");
    ExpectNear(fast, reference, 2e-5, p.op + " with " + std::to_string(threads) + " threads");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RecurrentKernel,
                         testing::Values(RecurrentCase{"RNN", 1, 7, 2, 5, 9},
                                         RecurrentCase{"RNN", 1, 3, 1, 4, 3, "bidirectional", 1},
                                         RecurrentCase{"GRU", 3, 7, 1, 5, 9, "forward", 0, 1},
                                         RecurrentCase{"GRU", 3, 5, 3, 8, 17, "reverse", 1, 1},
                                         RecurrentCase{"GRU", 3, 5, 3, 8, 17, "bidirectional", 0, 0},
                                         RecurrentCase{"GRU", 3, 4, 2, 3, 33, "forward", 1, 0, false, false},
                                         RecurrentCase{"LSTM", 4, 6, 1, 5, 32},
                                         RecurrentCase{"LSTM", 4, 6, 5, 11, 13, "bidirectional", 1},
                                         RecurrentCase{"LSTM", 4, 2, 40, 64, 70, "reverse", 0, 0, false,
                                                       false}));

TEST(RecurrentKernels, WhatHasNoFastKernelIsLeftToTheReference) {
  RandomNumbers numbers;
  std::vector<Data> inputs = {numbers.Of({2, 1, 3}), numbers.Of({1, 16, 3}), numbers.Of({1, 16, 4})};
  Node node{.op = "LSTM", .opset = 14, .attributes = {{"hidden_size", int64_t{4}}}};
  EXPECT_EQ(RunNode(node, inputs, 3, true).kernel, "gemm");
  node.attributes.emplace_back("clip", 0.5f);
  EXPECT_EQ(RunNode(node, inputs, 3, true).kernel, "reference");
  node.attributes.back() = {"activations", std::vector<std::string>{"HardSigmoid", "Tanh", "Tanh"}};
  EXPECT_EQ(RunNode(node, inputs, 3, true).kernel, "reference");
  node.attributes.pop_back();
  inputs[1].known = false;
  EXPECT_EQ(RunNode(node, inputs, 3, true).kernel, "reference");
}

// Axes of one element lie between others or are all there is: what is reduced must stay the axes that were
// asked for.
TEST(Reduce, RangesOfAxesLeaveTheOtherAxesAlone) {
  struct Case {
    std::vector<int64_t> dims, axes;
    std::string kernel;
  };
  RandomNumbers numbers;
  for (const Case& p : {Case{{2, 3, 4}, {2}, "rows"},
                        {{2, 3, 4}, {1}, "rows"},
                        {{2, 3, 4}, {0, 2}, "reference"},  // 3 lies between
                        {{2, 1, 4}, {0, 2}, "rows"},       // only a 1 lies between
                        {{2, 3, 1, 5}, {2}, "rows"},       // nothing is summed
                        {{4, 1, 1, 6}, {1, 2}, "rows"},    //
                        {{1, 1, 5}, {0, 1}, "rows"},       //
                        {{3, 1, 4, 5}, {1, 3}, "rows"},    // the 4 stays, though it stands behind a reduced 1
                        {{3, 1, 4, 5}, {1, 2}, "rows"},    //
                        {{1, 7, 1}, {0, 2}, "rows"},       //
                        {{1, 7, 1}, {-1, 0, 1}, "rows"}}) {
    for (const char* const op : {"ReduceMean", "ReduceSum"}) {
      // Until opset 11 the axes of both are an attribute.
      const Node node{.op = op, .opset = 11, .attributes = {{"axes", p.axes}}};
      const std::vector<Data> inputs = {numbers.Of(p.dims)};
      const Ran fast = RunNode(node, inputs, 1, true);
      const std::string what = std::string(op) + " of " + inputs[0].tensor.shape.ToString() + " over " +
                               std::to_string(p.axes.size()) + " axes from " + std::to_string(p.axes[0]);
      EXPECT_EQ(fast.kernel, p.kernel) << what;
      ExpectNear(fast, RunNode(node, inputs, 1, false), 1e-5, what);
    }
  }
}

}  // namespace
}  // namespace celer::graph
