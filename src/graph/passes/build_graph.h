// Small graphs for tests of passes.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "graph/passes/pass.h"
#include "graph/run/program.h"
#include "graph/run/session.h"

namespace celer::graph::testing {

// A graph with one input "x", built node by node.
class Build {
 public:
  explicit Build(std::vector<int64_t> dims) {
    ValueType type{.dtype = DType::kF32, .shape = std::vector<Dim>()};
    for (const int64_t dim : dims) type.shape->push_back({dim, ""});
    x = graph.AddInput("x", type);
    dims_ = std::move(dims);
  }

  ValueId Floats(const std::vector<int64_t>& dims, float least = -1) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    auto numbers = std::make_shared<std::vector<float>>();
    for (int64_t i = 0; i < count; ++i)
      numbers->push_back(std::uniform_real_distribution<float>(least, 1)(random_));
    return graph.AddConstant(
        Name(), {DType::kF32, Shape(dims), std::as_bytes(std::span<const float>(*numbers)), numbers});
  }
  ValueId Scalar(float number) {
    auto one = std::make_shared<std::vector<float>>(1, number);
    return graph.AddConstant(Name(), {DType::kF32, Shape(std::vector<int64_t>{}),
                                      std::as_bytes(std::span<const float>(*one)), one});
  }
  ValueId Ints(const std::vector<int64_t>& numbers) {
    auto copy = std::make_shared<std::vector<int64_t>>(numbers);
    return graph.AddConstant(Name(), {DType::kI64, Shape({static_cast<int64_t>(numbers.size())}),
                                      std::as_bytes(std::span<const int64_t>(*copy)), copy});
  }
  ValueId Op(const char* op, std::vector<ValueId> inputs,
             std::vector<std::pair<std::string, Attribute>> attributes = {}, int opset = 18) {
    const std::string out = Name();
    return graph
        .AddNode({.op = op,
                  .name = out,
                  .opset = opset,
                  .inputs = std::move(inputs),
                  .attributes = std::move(attributes)},
                 std::span(&out, 1))
        .outputs[0];
  }
  ValueId Out(ValueId value) {
    graph.outputs.push_back(value);
    return value;
  }

  int Count(std::string_view op) const {
    int count = 0;
    for (const Node& node : graph.nodes) count += node.op == op ? 1 : 0;
    return count;
  }

  std::vector<std::vector<float>> Run() {
    std::mt19937 random(5);
    int64_t count = 1;
    for (const int64_t dim : dims_) count *= dim;
    std::vector<float> input;
    for (int64_t i = 0; i < count; ++i) input.push_back(std::normal_distribution<float>()(random));
    Network network;
    network.graph = graph;
    auto program = Program::Make(std::move(network));
    EXPECT_TRUE(program) << program.error().message();
    if (!program) return {};
    Session session(*program);
    auto outputs = session.Run({Data::Of(TensorView::Contiguous(reinterpret_cast<std::byte*>(input.data()),
                                                                DType::kF32, Device::Cpu(), Shape(dims_)))});
    EXPECT_TRUE(outputs) << outputs.error().message();
    std::vector<std::vector<float>> out;
    if (!outputs) return out;
    for (const Data& data : *outputs) {
      const auto* const numbers = static_cast<const float*>(static_cast<const void*>(data.tensor.data));
      out.emplace_back(numbers, numbers + *data.tensor.shape.elements());
    }
    return out;
  }

  // Optimizes, checks that the outputs stay, and returns how often the pass fired.
  int Fires(std::string_view pass, const OptimizeOptions& options = {}) {
    EXPECT_TRUE(graph.Sort());
    const auto before = Run();
    auto reports = Optimize(&graph, options);
    EXPECT_TRUE(reports) << reports.error().message();
    if (!reports) return -1;
    const auto after = Run();
    EXPECT_EQ(before.size(), after.size());
    for (size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
      EXPECT_EQ(before[i].size(), after[i].size());
      for (size_t k = 0; k < std::min(before[i].size(), after[i].size()); ++k)
        EXPECT_NEAR(before[i][k], after[i][k], 1e-5 * std::max(1.0f, std::abs(before[i][k])));
    }
    for (const PassReport& report : *reports)
      if (report.name == pass) {
        EXPECT_EQ(report.notes.size(), static_cast<size_t>(report.changes));
        return report.changes;
      }
    return -1;
  }

  Graph graph;
  ValueId x;

 private:
  std::string Name() { return "v" + std::to_string(next_++); }
  std::vector<int64_t> dims_;
  std::mt19937 random_{3};
  int next_ = 0;
};

}  // namespace celer::graph::testing
