// celer graph bench: how long a network takes, operator by operator, beside the least it could take.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "celer/limits.h"
#include "limits/roofline.h"
#include "report/table.h"

namespace celer::cli {

struct NodeTime {
  std::string op, kernel, name, shape;  // of the node, and of its first output
  double seconds = 0;                   // the median
  Work work = {};

  double intensity() const { return work.bytes() > 0 ? work.flops / work.bytes() : 0; }
};

// With one number of threads.
struct GraphTimes {
  int threads = 1;
  Machine machine;
  Roof roof;
  std::vector<double> runs;  // seconds, ascending
  std::vector<NodeTime> nodes;
  Work whole;  // the lower bound: weights, inputs and outputs once, and the arithmetic

  double median() const { return runs[runs.size() / 2]; }
  double one_by_one() const;  // the limits of the operators, added
};

struct GraphBench {
  std::string path;
  std::string network;              // "ONNX, opset 17, 4.0M parameters"
  std::vector<std::string> inputs;  // "x f32[1, 3, 224, 224]"
  double flops = 0, weight_bytes = 0, activation_bytes = 0;
  bool optimized = true;
  std::string precision = "f32";  // of the arithmetic, and of the limit it is measured by
  std::vector<GraphTimes> times;
};

// Nodes of one operator and kernel together, the slowest first.
struct OperatorTime {
  std::string op, kernel;
  int nodes = 0;
  double seconds = 0, limit = 0;
  Work work = {};
};
std::vector<OperatorTime> ByOperator(const GraphTimes& times);

Table SpeedTable(const GraphBench& bench);
Table OperatorTable(const GraphTimes& times);
Table NodeTable(const GraphTimes& times, size_t most);  // the slowest first
Facts GraphBenchFacts(const GraphBench& bench);
nlohmann::ordered_json GraphBenchJson(const GraphBench& bench);
std::string GraphBenchHtml(const GraphBench& bench);

}  // namespace celer::cli
