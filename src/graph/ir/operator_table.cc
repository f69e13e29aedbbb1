#include "graph/ir/operator_table.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/suggest.h"
#include "graph/load/microsoft/expansion.h"
#include "graph/ops/other_domains.h"
#include "io/file/printable.h"

namespace celer::graph {
namespace {

std::vector<Family> AllFamilies() {
  std::vector<Family> out(std::begin(kFamilies), std::end(kFamilies));
  out.insert(out.end(), std::begin(kOtherFamilies), std::end(kOtherFamilies));
  return out;
}

std::vector<const Operator*> Gather() {
  std::vector<const Operator*> out;
  for (const Family& family : AllFamilies())
    for (const Operator& op : family.rows()) out.push_back(&op);
  std::stable_sort(out.begin(), out.end(), [](const Operator* a, const Operator* b) {
    return std::tie(a->domain, a->name, a->since) < std::tie(b->domain, b->name, b->since);
  });
  return out;
}

std::string_view WithoutAlias(std::string_view domain) {
  return domain == "ai.onnx" ? "" : domain;
}

// What to do about operators that are missing for a reason.
struct Remedy {
  std::string_view begins;
  std::string_view advice;
};
constexpr Remedy kRemedies[] = {
    {"String", "do text work before the network"},
    {"RegexFullMatch", "do text work before the network"},
    {"TfIdfVectorizer", "do text work before the network"},
    {"DictVectorizer", "export the model with a dense array as its input, not dictionaries"},
    {"CastMap", "export the model with a dense array as its input, not dictionaries"},
    {"ImageDecoder", "decode images before the network"},
    {"Gradient", "export the network for inference, not training"},
    {"Adam", "export the network for inference, not training"},
    {"Adagrad", "export the network for inference, not training"},
    {"Momentum", "export the network for inference, not training"},
};

struct Missing {
  int count = 0;
  std::string example;
  int opset = 0;
};

void Collect(const Graph& graph, std::map<std::pair<std::string, std::string>, Missing>* missing) {
  for (const Node& node : graph.nodes) {
    if (!FindOperator(node)) {
      Missing& entry = (*missing)[{node.domain, node.op}];
      if (++entry.count == 1) {
        entry.example = node.name.empty() && !node.outputs.empty() && node.outputs[0] != kNoValue
                            ? graph.value(node.outputs[0]).name
                            : node.name;
        entry.opset = node.opset;
      }
    }
    for (const auto& subgraph : node.Subgraphs()) Collect(*subgraph, missing);
  }
}

std::string Advice(const std::string& domain, const std::string& op, const Missing& entry) {
  std::vector<std::string> names;
  int first = 0;
  for (const Operator* known : Operators()) {
    if (known->domain != WithoutAlias(domain)) continue;
    names.emplace_back(known->name);
    if (known->name == op) first = first == 0 ? known->since : std::min(first, known->since);
  }
  if (first > entry.opset)
    return "known from opset " + std::to_string(first) + " on; convert the model with onnx.version_converter";
  for (const Remedy& remedy : kRemedies)
    if (op.starts_with(remedy.begins)) return std::string(remedy.advice);
  // Blocked layouts (NCHWc) for the CPU that the file was made on.
  if (domain == "com.microsoft.nchwc")
    return "ONNX Runtime made the file for one CPU; save it at ORT_ENABLE_EXTENDED, or give the original";
  if (!WithoutAlias(domain).empty())
    return "of the domain " + Printable(domain) + "; export without it, or with its operators as functions";
  const auto near = Nearest(op, names);
  if (near) return "did you mean " + *near + "?";
  return "export with another opset, or express it by operators of docs/operators.md";
}

std::string TypeNames(DTypeSet types) {
  struct TypeGroup {
    const char* name;
    DTypeSet types;
  };
  constexpr TypeGroup kGroups[] = {
      {"any", kAnyType},       {"numbers", kNumbers},      {"floats", kFloats},
      {"integers", kIntegers}, {"signed", kSigned},        {"unsigned", kUnsigned},
      {"bool", kBools},        {"fp8, fp4", kSmallFloats}, {"4 and 2 bits", kSmallInts}};
  std::string out;
  DTypeSet left = types;
  for (const TypeGroup& group : kGroups) {
    if ((left | group.types) == left && !(group.types == DTypeSet{})) {
      out += (out.empty() ? "" : ", ") + std::string(group.name);
      DTypeSet rest;
      for (int i = 0; i <= static_cast<int>(DType::kU2); ++i)
        if (left.Has(static_cast<DType>(i)) && !group.types.Has(static_cast<DType>(i)))
          rest = rest | DTypeSet{static_cast<DType>(i)};
      left = rest;
    }
  }
  for (int i = 0; i <= static_cast<int>(DType::kU2); ++i)
    if (left.Has(static_cast<DType>(i)))
      out += (out.empty() ? "" : ", ") + std::string(Name(static_cast<DType>(i)));
  return out;
}

std::string Range(const Arity& arity) {
  if (arity.most < 0) return std::to_string(arity.least) + " or more";
  if (arity.most == arity.least) return std::to_string(arity.least);
  return std::to_string(arity.least) + " to " + std::to_string(arity.most);
}

}  // namespace

std::span<const Operator* const> Operators() {
  static const std::vector<const Operator*> all = Gather();
  return all;
}

const Operator* FindOperator(std::string_view domain, std::string_view name, int opset) {
  domain = WithoutAlias(domain);
  const auto all = Operators();
  const Operator* found = nullptr;
  auto at = std::lower_bound(
      all.begin(), all.end(), std::tie(domain, name),
      [](const Operator* op, const auto& key) { return std::tie(op->domain, op->name) < key; });
  for (; at != all.end() && (*at)->domain == domain && (*at)->name == name; ++at)
    if ((*at)->since <= opset && ((*at)->until == 0 || opset <= (*at)->until)) found = *at;
  return found;
}

Status CheckArity(const Node& node) {
  const Operator* const row = FindOperator(node);
  if (!row) return {};
  const Operator& op = *row;
  const auto in = static_cast<int>(node.inputs.size()), out = static_cast<int>(node.outputs.size());
  if (in < op.inputs.least || (op.inputs.most >= 0 && in > op.inputs.most))
    return Error::Corrupt(node.Label(), " has ", in, " inputs; it takes ", op.inputs.least,
                          op.inputs.most < 0                  ? " or more"
                          : op.inputs.most == op.inputs.least ? std::string()
                                                              : " to " + std::to_string(op.inputs.most));
  for (int i = 0; i < op.inputs.least; ++i)
    if (node.inputs[i] == kNoValue)
      return Error::Corrupt(node.Label(), ": its input ", i, " is not given, and it must be");
  if (out < op.outputs.least || (op.outputs.most >= 0 && out > op.outputs.most))
    return Error::Corrupt(node.Label(), " has ", out, " outputs; it gives ", op.outputs.least,
                          op.outputs.most < 0                   ? " or more"
                          : op.outputs.most == op.outputs.least ? std::string()
                                                                : " to " + std::to_string(op.outputs.most));
  return {};
}

Status CheckSupported(const Graph& graph) {
  std::map<std::pair<std::string, std::string>, Missing> missing;
  Collect(graph, &missing);
  if (missing.empty()) return {};
  std::string list;
  int nodes = 0;
  for (const auto& [key, entry] : missing) {
    const auto& [domain, op] = key;
    nodes += entry.count;
    list += (list.empty() ? "" : "; ") + (domain.empty() ? "" : Printable(domain) + ".") + Printable(op) +
            (entry.count > 1 ? " (" + std::to_string(entry.count) + " times" : std::string(" (once")) +
            (entry.example.empty() ? "" : ", first '" + Printable(entry.example, 60) + "'") +
            "): " + Advice(domain, op, entry);
  }
  return Error::Unsupported(nodes, nodes == 1 ? " node" : " nodes", " of ", missing.size(),
                            missing.size() == 1 ? " operator" : " operators", " cannot run: ", list);
}

std::string OperatorsMarkdown() {
  std::string out =
      "# Operators of the graph runtime\n\n"
      "Made from the operator table by `celer graph operators --markdown`; a test keeps it up to date. "
      "Opset: the "
      "first one whose meaning is\nknown (and the last one, if a later row differs); models from opset " +
      std::to_string(kOldestOpset) + " to " + std::to_string(kNewestOpset) +
      " are read. Types: of the first input; *numbers* are floats (f32, f64, f16, bf16) and\nintegers of 8 "
      "to 64 "
      "bits. Kernels: what runs beside the reference.\n\n";
  for (const Family& family : AllFamilies()) {
    out += "## " + std::string(family.title) +
           "\n\n| operator | opset | inputs | outputs | types | fast kernels |\n"
           "|---|---|---|---|---|---|\n";
    for (const Operator& op : family.rows()) {
      std::string fast;
      for (const FastKernel& kernel : op.fast) fast += (fast.empty() ? "" : ", ") + std::string(kernel.name);
      out += "| " + (op.domain.empty() ? "" : std::string(op.domain) + ".") + std::string(op.name) + " | " +
             std::to_string(op.since) + (op.until ? "–" + std::to_string(op.until) : std::string("+")) +
             " | " + Range(op.inputs) + " | " + Range(op.outputs) + " | " + TypeNames(op.types) + " | " +
             fast + " |\n";
    }
    out += "\n";
  }
  out +=
      "## Operators of com.microsoft, as operators of ONNX\n\n"
      "What ONNX Runtime's optimizer and quantizer write. A network is loaded with the operators in their "
      "place "
      "that they were\nmade of, which passes then fuse (`src/graph/load/microsoft`); so is "
      "LayerNormalization "
      "below opset "
      "17.\n\n";
  size_t expanded = 0;
  for (const std::string_view name : MicrosoftOperators())
    out += (expanded++ > 0 ? ", " : "") + std::string(name);
  out += "\n\n";
  size_t names = expanded;
  const auto all = Operators();
  for (size_t i = 0; i < all.size(); ++i)
    names += i == 0 || all[i]->name != all[i - 1]->name || all[i]->domain != all[i - 1]->domain;
  return out + std::to_string(names) + " operators.\n";
}

}  // namespace celer::graph
