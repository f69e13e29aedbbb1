// A float network with f16 inside. Convolutions and products with constant weights compute in f16; operators
// that move elements, and cheap ones between, carry f16 along, so that casts stand only where such a region
// begins or ends. Weights stay f32 in the graph: kernels round them as they pack.
//
// What stays f32: operators without an f16 kernel (norms, softmax, most reductions, attention), and what
// comes behind the last large product. There outputs are decoded: coordinates of boxes, probabilities, sums
// of few numbers, where f16 would show and would save nothing.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "device/cpu_features.h"
#include "device/variant.h"
#include "formats/float16.h"
#include "graph/ops/fast/fast.h"
#include "graph/passes/fusing.h"

namespace celer::graph {
namespace {

constexpr int64_t kFloat = 1, kFloat16 = 10;  // ONNX's numbers of the types
constexpr float kLargest = 65504;             // of f16
// A product with fewer weights is no reason to have f16 before it.
constexpr int64_t kLargeWeights = 1024;

// Operators that run on f16 as they are, and how many of their inputs are values, not shapes; -1: all.
struct F16Operator {
  std::string_view op;
  int values;
};
constexpr F16Operator kF16Operators[] = {
    {"Add", -1},         {"Clip", -1},       {"Concat", -1},
    {"DepthToSpace", 1}, {"Div", -1},        {"Flatten", 1},
    {"Gelu", 1},         {"Identity", 1},    {"GlobalAveragePool", 1},
    {"HardSwish", 1},    {"HardSigmoid", 1}, {"LeakyRelu", 1},
    {"Max", -1},         {"MaxPool", 1},     {"Min", -1},
    {"Mul", -1},         {"Relu", 1},        {"Reshape", 1},
    {"Resize", 1},       {"Sigmoid", 1},     {"Slice", 1},
    {"SpaceToDepth", 1}, {"Split", 1},       {"Squeeze", 1},
    {"Sub", -1},         {"Swish", 1},       {"Tanh", 1},
    {"Transpose", 1},    {"Unsqueeze", 1},
};

class Converter {
 public:
  explicit Converter(Rewriter& r) : r_(r) {}

  int Run(const std::function<void(std::string)>& explain) {
    Choose();
    const size_t nodes = r_.nodes();
    half_.assign(r_.graph().values.size(), kNoValue);
    int changes = 0;
    for (size_t n = 0; n < nodes; ++n)
      if (chosen_[n]) {
        if (product_[n]) explain(r_.node(n).Label() + " computes in f16");
        Convert(n);
        ++changes;
      }
    WidenForReaders();
    return changes;
  }

 private:
  bool IsF32(ValueId id) const { return r_.TypeOf(id) == DType::kF32; }

  bool IsProduct(const Node& node) const {
    if (IsConstantProduct(r_, node)) return true;
    if (node.op != "Conv" || !(node.domain.empty() || node.domain == kCelerDomain)) return false;
    return HasConstantWeights(r_, node) && r_.ConstantOf(node.inputs[1])->shape.rank() <= 4;
  }
  int64_t Weights(const Node& node) const { return *r_.ConstantOf(node.inputs[1])->shape.elements(); }

  static const F16Operator* FindF16Operator(const Node& node) {
    if (!node.domain.empty() || !node.Subgraphs().empty()) return nullptr;
    const auto at = std::find_if(std::begin(kF16Operators), std::end(kF16Operators),
                                 [&](const F16Operator& light) { return light.op == node.op; });
    return at == std::end(kF16Operators) ? nullptr : at;
  }

  // The inputs that carry values, by number.
  std::vector<size_t> ValueInputs(const Node& node, bool product) const {
    std::vector<size_t> out;
    if (product) {
      out.push_back(0);
      if (node.inputs.size() > 3 && node.inputs[3] != kNoValue) out.push_back(3);
      return out;
    }
    const int values = FindF16Operator(node)->values;
    for (size_t i = 0; i < node.inputs.size() && (values < 0 || i < static_cast<size_t>(values)); ++i)
      if (node.inputs[i] != kNoValue) out.push_back(i);
    return out;
  }

  bool Fits(const Node& node, bool product) const {
    for (const size_t i : ValueInputs(node, product)) {
      if (!IsF32(node.inputs[i])) return false;
      const Constant* const constant = r_.ConstantOf(node.inputs[i]);
      if (!constant) continue;
      for (const float number : FloatsOf(*constant))
        if (!(std::abs(number) <= kLargest)) return false;
    }
    if (node.op == "MaxPool" && node.outputs.size() > 1 && node.outputs[1] != kNoValue) return false;
    return true;
  }

  // Forward propagation of what is f16 already, backward of what still leads to a large product.
  void Choose() {
    Graph& graph = r_.graph();
    const size_t nodes = r_.nodes();
    product_.assign(nodes, false);
    chosen_.assign(nodes, false);
    std::vector<bool> wanted(graph.values.size(), false);  // leads to a large product
    std::vector<bool> leads(nodes, false);
    for (size_t n = nodes; n-- > 0;) {
      const Node& node = r_.node(n);
      for (const ValueId id : node.outputs) leads[n] = leads[n] || (id != kNoValue && wanted[id]);
      product_[n] = IsProduct(node) && Fits(node, true);
      leads[n] = leads[n] || (product_[n] && Weights(node) >= kLargeWeights);
      if (!leads[n]) continue;
      for (const ValueId id : graph.Reads(node)) wanted[id] = true;
    }
    std::vector<bool> is_half(graph.values.size(), false);
    for (size_t n = 0; n < nodes; ++n) {
      const Node& node = r_.node(n);
      if (!leads[n]) continue;
      bool some = product_[n];
      if (!some && FindF16Operator(node) && Fits(node, false))
        for (const size_t i : ValueInputs(node, false)) some = some || is_half[node.inputs[i]];
      if (!some) continue;
      chosen_[n] = true;
      for (const ValueId id : node.outputs)
        if (id != kNoValue) is_half[id] = true;
    }
  }

  // The f16 form of a value: made by a node that was converted, or by a cast.
  ValueId HalfOf(ValueId id) {
    ValueId& half = half_[id];
    if (half != kNoValue) return half;
    const std::string name = r_.graph().value(id).name + "/f16";
    if (const Constant* const constant = r_.ConstantOf(id)) {
      auto bits = std::make_shared<std::vector<uint16_t>>();
      for (const float number : FloatsOf(*constant)) bits->push_back(FloatToF16(number));
      const auto bytes = std::as_bytes(std::span<const uint16_t>(*bits));
      return half = r_.AddConstant(name, {DType::kF16, constant->shape, bytes, std::move(bits)});
    }
    return half = AddCast(id, NewHalf(id), kFloat16);
  }

  ValueId NewHalf(ValueId like) {
    ValueType type = r_.graph().value(like).type;
    type.dtype = DType::kF16;
    return r_.graph().AddValue(r_.graph().value(like).name + "/f16", type);
  }

  ValueId AddCast(ValueId from, ValueId to, int64_t type) {
    r_.graph().nodes.push_back({.op = "Cast",
                                .name = r_.graph().value(to).name,
                                .opset = 13,
                                .inputs = {from},
                                .outputs = {to},
                                .attributes = {{"to", type}}});
    return to;
  }

  void Convert(size_t n) {
    const bool product = product_[n];
    for (const size_t i : ValueInputs(r_.node(n), product)) {
      const ValueId half = HalfOf(r_.node(n).inputs[i]);  // may add a node
      r_.node(n).inputs[i] = half;
    }
    Node& node = r_.node(n);
    if (product && node.op == "Conv")
      MakeFused(node);
    else if (product)
      MakeProduct(node);
    for (ValueId& id : node.outputs)
      if (id != kNoValue) id = half_[id] = NewHalf(id);
  }

  // Nodes that stayed f32, subgraphs and the network's outputs read f32.
  void WidenForReaders() {
    Graph& graph = r_.graph();
    std::vector<bool> made(graph.values.size(), false), read(graph.values.size(), false);
    for (const Node& node : graph.nodes) {
      for (const ValueId id : graph.Reads(node)) read[id] = true;
      for (const ValueId id : node.outputs)
        if (id != kNoValue) made[id] = true;
    }
    for (const ValueId id : graph.outputs) read[id] = true;
    for (const ValueId id : graph.inputs) made[id] = true;
    for (size_t v = 0; v < half_.size(); ++v)
      if (half_[v] != kNoValue && read[v] && !made[v] && !graph.values[v].constant)
        AddCast(half_[v], static_cast<ValueId>(v), kFloat);
    r_.Recount();
  }

  Rewriter& r_;
  std::vector<bool> product_, chosen_;  // by node
  std::vector<ValueId> half_;           // by value
};

}  // namespace

Result<int> ToF16(Rewriter& r, const std::function<void(std::string)>& explain) {
  return Converter(r).Run(explain);
}

Result<PassReport> LowerToF16(Graph* graph) {
  if (!RunsHere(Isa::kArmFp16))
    return Error::Unsupported("f16 arithmetic needs an Arm CPU with FEAT_FP16 (asimdhp), which this one, ",
                              HostCpu().model, ", is not; run with the precision f32");
  const auto begin = std::chrono::steady_clock::now();
  PassReport report{.name = "to-f16"};
  const SampleShapes shapes = SampleShapesOf(*graph);
  Rewriter rewriter(graph, &shapes);
  CELER_ASSIGN(report.changes,
               ToF16(rewriter, [&](std::string note) { report.notes.push_back(std::move(note)); }));
  CELER_RETURN_IF_ERROR(rewriter.Finish());
  if (const Status sound = Verify(*graph); !sound) return sound.error().WithContext("after the pass to-f16");
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace celer::graph
