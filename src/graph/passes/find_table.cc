// Lookup tables: an elementwise function between a dequantized value and a QuantizeLinear, evaluated for all
// 256 bytes with the operators themselves.
#include <algorithm>

#include "graph/passes/quantization.h"
#include "graph/run/program.h"
#include "graph/run/session.h"

namespace celer::graph {
namespace {

constexpr std::string_view kFunctions[] = {
    "Abs",         "Add",       "Ceil",     "Celu",      "Clip", "Div",
    "Elu",         "Erf",       "Exp",      "Floor",     "Gelu", "Log",
    "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Max",  "Min",
    "Mish",        "Mul",       "Neg",      "PRelu",     "Pow",  "Reciprocal",
    "Relu",        "Round",     "Selu",     "Sigmoid",   "Sign", "Softplus",
    "Softsign",    "Sqrt",      "Sub",      "Swish",     "Tanh", "ThresholdedRelu"};
constexpr size_t kMostNodes = 16;

bool IsFunction(const Node& node) {
  return node.domain.empty() && node.outputs.size() == 1 &&
         std::find(std::begin(kFunctions), std::end(kFunctions), node.op) != std::end(kFunctions);
}

// The nodes between, found from the end, and the one dequantized value that they begin with.
struct Between {
  std::vector<size_t> nodes;  // readers before makers
  ValueId begin = kNoValue;
  bool sound = true;
};

void Walk(Rewriter& r, ValueId value, Between& found) {
  if (const Constant* const constant = r.ConstantOf(value)) {
    found.sound = found.sound && constant->shape.elements() == 1 && constant->shape.rank() <= 1;
    return;
  }
  if (r.ProducedBy(value, "DequantizeLinear")) {
    found.sound = found.sound && (found.begin == kNoValue || found.begin == value);
    found.begin = value;
    return;
  }
  const int maker = r.ProducerOf(value);
  if (maker < 0 || !IsFunction(r.node(static_cast<size_t>(maker))) || found.nodes.size() >= kMostNodes) {
    found.sound = false;
    return;
  }
  const auto at = static_cast<size_t>(maker);
  const auto seen = std::find(found.nodes.begin(), found.nodes.end(), at);
  if (seen != found.nodes.end()) found.nodes.erase(seen);  // it comes before all its readers
  found.nodes.push_back(at);
  for (const ValueId id : r.node(at).inputs)
    if (id != kNoValue && found.sound) Walk(r, id, found);
}

// No value in between has a reader outside.
bool IsClosed(Rewriter& r, const Between& found, ValueId end) {
  for (const size_t n : found.nodes) {
    const ValueId made = r.node(n).outputs[0];
    int inside = made == end ? 1 : 0;
    for (const size_t m : found.nodes) {
      const auto& inputs = r.node(m).inputs;
      inside += std::find(inputs.begin(), inputs.end(), made) != inputs.end() ? 1 : 0;
    }
    if (inside != r.Readers(made)) return false;
  }
  return true;
}

std::optional<std::vector<float>> Evaluate(Rewriter& r, const Between& found, ValueId end,
                                           std::vector<float> numbers) {
  Network network;
  Graph& graph = network.graph;
  const Graph& from = r.graph();
  std::vector<ValueId> of(from.values.size(), kNoValue);
  of[found.begin] = graph.AddInput("x", {.dtype = DType::kF32, .shape = std::vector<Dim>{{256, ""}}});
  for (auto n = found.nodes.rbegin(); n != found.nodes.rend(); ++n) {
    Node node = r.node(*n);
    for (ValueId& id : node.inputs) {
      if (id == kNoValue) continue;
      ValueId& to = of[id];
      if (const Constant* const constant = r.ConstantOf(id); constant && to == kNoValue)
        to = graph.AddConstant(from.value(id).name, *constant);
      id = to;
    }
    const ValueId made = node.outputs[0];
    const std::string name = from.value(made).name;
    node.outputs.clear();
    of[made] = graph.AddNode(std::move(node), std::span(&name, 1)).outputs[0];
  }
  graph.outputs = {of[end]};
  auto program = Program::Make(std::move(network));
  if (!program) return std::nullopt;
  Session session(*program);
  auto outputs = session.Run({Data::Of(TensorView::Contiguous(reinterpret_cast<std::byte*>(numbers.data()),
                                                              DType::kF32, Device::Cpu(), Shape({256})))});
  if (!outputs || (*outputs)[0].tensor.dtype != DType::kF32 || (*outputs)[0].tensor.shape.elements() != 256)
    return std::nullopt;
  const float* const y = (*outputs)[0].tensor.as<float>();
  return std::vector<float>(y, y + 256);
}

}  // namespace

std::optional<LookupTable> FindTable(Rewriter& r, const Node& quantize) {
  const auto to = QuantizationOf(r, quantize);
  const ValueId end = quantize.inputs[0];
  if (!to) return std::nullopt;
  Between found;
  Walk(r, end, found);
  if (!found.sound || found.begin == kNoValue || !IsClosed(r, found, end)) return std::nullopt;
  const auto from = DequantizedFrom(r, found.begin);
  if (!from) return std::nullopt;
  std::vector<float> numbers;
  for (int i = 0; i < 256; ++i)
    numbers.push_back(from->q.DequantizeValue(from->q.is_signed ? static_cast<int8_t>(i) : i));
  if (!found.nodes.empty()) {
    auto made = Evaluate(r, found, end, std::move(numbers));
    if (!made) return std::nullopt;
    numbers = std::move(*made);
  }
  LookupTable out{.from = *from, .bytes = {}, .label = {}};
  for (const float number : numbers) out.bytes.push_back(static_cast<int8_t>(to->QuantizeValue(number)));
  out.label = found.nodes.empty() ? quantize.Label() : r.node(found.nodes[0]).Label();
  return out;
}

}  // namespace celer::graph
