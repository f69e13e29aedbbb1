#include "graph/load/load_pnnx.h"

#include <algorithm>
#include <map>

#include "base/suggest.h"
#include "graph/load/pnnx/lowering.h"
#include "io/file/printable.h"

namespace celer::graph {
namespace {

constexpr std::string_view kOnnx = "onnx.";
constexpr std::string_view kTuple = "prim::TupleConstruct";  // several outputs of a network
constexpr std::string_view kNotGiven = "_";                  // an optional input of an onnx.NAME

// A node that kept its ONNX operator.
void LowerOnnx(Lowering& l) {
  const PnnxOperator& op = l.op();
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < op.inputs.size(); ++i)
    inputs.push_back(op.inputs[i] == kNotGiven ? kNoValue : l.Input(i));
  Lowering::Attributes attributes;
  int64_t opset = Lowering::kOpset;
  for (const auto& [key, value] : op.parameters) {
    if (key == "opset") {
      opset = l.Int(key, opset);
    } else if (const auto* number = std::get_if<int64_t>(&value)) {
      attributes.emplace_back(key, *number);
    } else if (const auto* real = std::get_if<double>(&value)) {
      attributes.emplace_back(key, static_cast<float>(*real));
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      attributes.emplace_back(key, *text);
    } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
      attributes.emplace_back(key, *ints);
    } else if (const auto* reals = std::get_if<std::vector<double>>(&value)) {
      attributes.emplace_back(key, std::vector<float>(reals->begin(), reals->end()));
    } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      attributes.emplace_back(key, *texts);
    } else if (std::holds_alternative<std::monostate>(value)) {
      attributes.emplace_back(key, std::vector<int64_t>());
    }
  }
  for (const auto& [key, weight] : op.weights) attributes.emplace_back(key, weight);
  const std::vector<ValueId> outputs =
      l.NodeOf(op.type.substr(kOnnx.size()), std::move(inputs), op.outputs.size(), std::move(attributes),
               static_cast<int>(opset));
  for (size_t i = 0; i < outputs.size(); ++i)
    if (op.outputs[i] != kNotGiven) l.Output(i, outputs[i]);
}

// All that is not known, at once.
Status CheckKnown(const PnnxFile& file) {
  std::map<std::string, int> unknown;
  bool ncnn = false;
  for (const PnnxOperator& op : file.operators) {
    ncnn |= op.type == "Input" || op.type == "Convolution";
    if (!op.type.starts_with(kOnnx) && op.type != "pnnx.Input" && op.type != "pnnx.Output" &&
        op.type != "pnnx.Attribute" && op.type != kTuple && !FindPnnxRow(op.type))
      ++unknown[op.type];
  }
  if (unknown.empty()) return {};
  if (ncnn)
    return Error::Unsupported(
        file.source, ": this is an ncnn network; pnnx writes the one to give beside it, as NAME.pnnx.param");
  std::string list;
  for (const auto& [type, count] : unknown)
    list += (list.empty() ? "" : ", ") + Printable(type) +
            (count > 1 ? " (" + std::to_string(count) + " times)" : "");
  return Error::Unsupported(file.source, ": ", unknown.size(),
                            unknown.size() == 1 ? " operator is" : " operators are", " not known: ", list,
                            "; exporting the network to ONNX may write them in known ones");
}

}  // namespace

Result<Network> ToNetwork(const PnnxFile& file) {
  CELER_RETURN_IF_ERROR(CheckKnown(file));
  Network out;
  out.source = file.source;
  out.format = "PNNX";
  out.opset = Lowering::kOpset;
  out.file_bytes = file.bytes;
  Lowering l(file, &out.graph);
  std::map<std::string, const PnnxOperator*> tuples;  // by the operand that stands for them
  for (const PnnxOperator& op : file.operators) {
    l.Begin(op);
    if (op.type == kTuple) {
      for (const std::string& name : op.outputs) tuples[name] = &op;
      continue;
    }
    if (op.type == "pnnx.Input") {
      const auto type = op.outputs.empty() ? file.operands.end() : file.operands.find(op.outputs[0]);
      l.Output(0, out.graph.AddInput(op.name, type == file.operands.end() ? ValueType() : type->second));
    } else if (op.type == "pnnx.Output") {
      std::vector<std::string> given;
      for (const std::string& name : op.inputs)
        if (const auto tuple = tuples.find(name); tuple != tuples.end())
          given.insert(given.end(), tuple->second->inputs.begin(), tuple->second->inputs.end());
        else
          given.push_back(name);
      for (size_t i = 0; i < given.size(); ++i) {
        const ValueId value = l.Operand(given[i]);
        if (value == kNoValue) break;
        // An input or a constant that is an output, or an output under two names, gets a node of its own.
        const ValueId named = l.Node("Identity", {value});
        out.graph.value(named).name = given.size() == 1 ? op.name : op.name + "." + std::to_string(i);
        out.graph.value(named).type = out.graph.value(value).type;
        out.graph.outputs.push_back(named);
      }
    } else if (op.type == "pnnx.Attribute") {
      if (op.weights.size() != 1)
        l.Fail("it has ", op.weights.size(), " weights, expected one");
      else
        l.Output(0, l.Weight(op.weights.begin()->first));
    } else if (op.type.starts_with(kOnnx)) {
      LowerOnnx(l);
    } else {
      FindPnnxRow(op.type)->lower(l);
    }
    if (l.error()) return *l.error();
  }
  if (out.graph.outputs.empty())
    return Error::Corrupt(file.source, ": no pnnx.Output says what the network gives");
  CELER_RETURN_IF_ERROR(out.graph.Sort());
  CELER_RETURN_IF_ERROR(Verify(out.graph));
  return out;
}

Result<Network> LoadPnnx(const std::filesystem::path& param) {
  CELER_ASSIGN(const PnnxFile file, ReadPnnx(param));
  return ToNetwork(file);
}

}  // namespace celer::graph
