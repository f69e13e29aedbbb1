#include <algorithm>
#include <cctype>

#include "graph/load/load_pnnx.h"

namespace celer::graph {
namespace {

constexpr const char* kNotGiven = "_";

// Names stand between spaces.
std::string Word(const std::string& name, const std::string& otherwise) {
  std::string out;
  for (const char c : name) out += std::isgraph(static_cast<unsigned char>(c)) != 0 && c != '=' ? c : '_';
  return out.empty() ? otherwise : out;
}

class Writer {
 public:
  explicit Writer(const Network& network) : graph_(network.graph) { file_.source = network.source; }

  Result<PnnxFile> Write() {
    for (const ValueId input : graph_.inputs) {
      if (graph_.value(input).constant) continue;
      PnnxOperator op{.type = "pnnx.Input", .name = Unique(Word(graph_.value(input).name, "input"))};
      op.outputs = {Operand(input)};
      file_.operators.push_back(std::move(op));
    }
    for (const Node& node : graph_.nodes) CELER_RETURN_IF_ERROR(Add(node));
    for (const ValueId output : graph_.outputs) {
      Attribute(output);
      PnnxOperator op{.type = "pnnx.Output", .name = Unique(Word(graph_.value(output).name, "output"))};
      op.inputs = {Operand(output)};
      file_.operators.push_back(std::move(op));
    }
    return std::move(file_);
  }

 private:
  std::string Unique(const std::string& name) {
    std::string unique = name;
    for (int i = 1; !names_.emplace(unique, 0).second; ++i) unique = name + "_" + std::to_string(i);
    return unique;
  }

  std::string Operand(ValueId value) {
    if (value == kNoValue) return kNotGiven;
    const std::string name = std::to_string(value);
    if (const ValueType& type = graph_.value(value).type; type.kind == ValueType::Kind::kTensor && type.shape)
      file_.operands.emplace(name, type);
    return name;
  }

  // A constant that is read as an operand is an operator of its own, once.
  void Attribute(ValueId value) {
    if (value == kNoValue || !graph_.value(value).constant || !attributes_.emplace(value, 0).second) return;
    PnnxOperator op{.type = "pnnx.Attribute", .name = Unique(Word(graph_.value(value).name, "constant"))};
    op.outputs = {Operand(value)};
    op.weights["data"] = *graph_.value(value).constant;
    file_.operators.push_back(std::move(op));
  }

  const Constant* ConstantOf(const Node& node, size_t i) const {
    if (i >= node.inputs.size() || node.inputs[i] == kNoValue) return nullptr;
    const auto& constant = graph_.value(node.inputs[i]).constant;
    return constant ? &*constant : nullptr;
  }

  Status Add(const Node& node) {
    if (!node.Subgraphs().empty())
      return Error::Unsupported(node.Label(), " has a graph inside, which PNNX cannot hold");
    PnnxOperator op{.name = Unique(Word(node.name, node.op))};
    for (const ValueId output : node.outputs) op.outputs.push_back(Operand(output));
    if (!Module(node, &op)) CELER_RETURN_IF_ERROR(Plain(node, &op));
    file_.operators.push_back(std::move(op));
    return {};
  }

  void Inputs(const Node& node, PnnxOperator* op, size_t count) {
    for (size_t i = 0; i < std::min(count, node.inputs.size()); ++i) {
      Attribute(node.inputs[i]);
      op->inputs.push_back(Operand(node.inputs[i]));
    }
  }

  // Those that PyTorch has, if the node says nothing that the module cannot. False: it is written as it is.
  bool Module(const Node& node, PnnxOperator* op) {
    if (!node.domain.empty()) return false;
    const auto simple = [&](const char* type) {
      op->type = type;
      Inputs(node, op, node.inputs.size());
      return true;
    };
    if (node.op == "Relu") return simple("nn.ReLU");
    if (node.op == "Sigmoid") return simple("nn.Sigmoid");
    if (node.op == "Tanh") return simple("nn.Tanh");
    if (node.op == "HardSwish") return simple("nn.Hardswish");
    if (node.op == "GlobalAveragePool" && Rank(node.inputs[0]) == 4) {
      op->parameters["output_size"] = std::vector<int64_t>{1, 1};
      return simple("nn.AdaptiveAvgPool2d");
    }
    if (node.op == "Concat") {
      op->parameters["dim"] = node.Int("axis", 0);
      return simple("torch.cat");
    }
    for (const auto& [onnx, name] : {std::pair("Add", "add"), {"Sub", "sub"}, {"Mul", "mul"}})
      // An expression converts types as PyTorch does, which takes knowing them.
      if (node.op == onnx && node.opset >= 7 && SameKnownType(node)) {
        op->parameters["expr"] = std::string(name) + "(@0,@1)";
        return simple("pnnx.Expression");
      }
    if (node.op == "Conv") return Convolution(node, op);
    if (node.op == "Gemm") return LinearLayer(node, op);
    return false;
  }

  bool SameKnownType(const Node& node) const {
    const auto &a = graph_.value(node.inputs[0]).type.dtype, &b = graph_.value(node.inputs[1]).type.dtype;
    return a && b && *a == *b;
  }

  int64_t Rank(ValueId value) const {
    const auto& shape = graph_.value(value).type.shape;
    return shape ? static_cast<int64_t>(shape->size()) : -1;
  }

  bool Convolution(const Node& node, PnnxOperator* op) {
    const Constant* const weight = ConstantOf(node, 1);
    const Constant* const bias = ConstantOf(node, 2);
    if (!weight || (node.inputs.size() > 2 && node.inputs[2] != kNoValue && !bias)) return false;
    const auto rank = weight->shape.dims().size();
    if (rank < 3 || rank > 5 || node.Text("auto_pad", "NOTSET") != "NOTSET") return false;
    const size_t dims = rank - 2;
    const auto list = [&](const char* key, int64_t otherwise) {
      const std::vector<int64_t> given = node.Ints(key);
      return given.empty() ? std::vector<int64_t>(dims, otherwise) : given;
    };
    std::vector<int64_t> pads = node.Ints("pads");
    if (pads.empty()) pads.resize(dims * 2, 0);
    if (pads.size() != dims * 2 || !std::equal(pads.begin(), pads.begin() + static_cast<int64_t>(dims),
                                               pads.begin() + static_cast<int64_t>(dims)))
      return false;
    pads.resize(dims);
    const auto shape = weight->shape.dims();
    const int64_t groups = node.Int("group", 1);
    op->type = "nn.Conv" + std::to_string(dims) + "d";
    op->parameters = {{"bias", bias != nullptr},
                      {"dilation", list("dilations", 1)},
                      {"groups", groups},
                      {"in_channels", shape[1] * groups},
                      {"kernel_size", std::vector<int64_t>(shape.begin() + 2, shape.end())},
                      {"out_channels", shape[0]},
                      {"padding", pads},
                      {"padding_mode", std::string("zeros")},
                      {"stride", list("strides", 1)}};
    op->weights["weight"] = *weight;
    if (bias) op->weights["bias"] = *bias;
    Inputs(node, op, 1);
    return true;
  }

  bool LinearLayer(const Node& node, PnnxOperator* op) {
    const Constant* const weight = ConstantOf(node, 1);
    const Constant* const bias = ConstantOf(node, 2);
    if (!weight || node.Int("transB", 0) != 1 || node.Int("transA", 0) != 0 || node.Float("alpha", 1) != 1 ||
        node.Float("beta", 1) != 1)
      return false;
    if (node.inputs.size() > 2 && node.inputs[2] != kNoValue && (!bias || bias->shape.dims().size() != 1))
      return false;
    op->type = "nn.Linear";
    op->parameters = {{"bias", bias != nullptr},
                      {"in_features", weight->shape.dims()[1]},
                      {"out_features", weight->shape.dims()[0]}};
    op->weights["weight"] = *weight;
    if (bias) op->weights["bias"] = *bias;
    Inputs(node, op, 1);
    return true;
  }

  Status Plain(const Node& node, PnnxOperator* op) {
    if (!node.domain.empty())
      return Error::Unsupported(node.Label(), " is of the domain '", node.domain,
                                "', which PNNX has no place for");
    op->type = "onnx." + node.op;
    op->parameters["opset"] = int64_t{node.opset};
    Inputs(node, op, node.inputs.size());
    for (const auto& [key, value] : node.attributes) {
      if (const auto* constant = std::get_if<Constant>(&value))
        op->weights[key] = *constant;
      else if (const auto* number = std::get_if<int64_t>(&value))
        op->parameters[key] = *number;
      else if (const auto* real = std::get_if<float>(&value))
        op->parameters[key] = double{*real};
      else if (const auto* text = std::get_if<std::string>(&value))
        op->parameters[key] = Word(*text, "");
      else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value))
        op->parameters[key] = *ints;
      else if (const auto* reals = std::get_if<std::vector<float>>(&value))
        op->parameters[key] = std::vector<double>(reals->begin(), reals->end());
      else if (const auto* texts = std::get_if<std::vector<std::string>>(&value))
        op->parameters[key] = *texts;
    }
    return {};
  }

  const Graph& graph_;
  PnnxFile file_;
  std::map<std::string, int> names_;
  std::map<ValueId, int> attributes_;
};

}  // namespace

Result<PnnxFile> ToPnnx(const Network& network) {
  return Writer(network).Write();
}

}  // namespace celer::graph
