#include <fmt/format.h>

#include <bit>
#include <map>

#include "graph/ir/operator_table.h"
#include "graph/passes/pass.h"

namespace celer::graph {
namespace {

// Common-subexpression elimination: equal keys, equal nodes; "": it is left alone.
std::string KeyOf(const Node& node) {
  const Operator* const op = FindOperator(node);
  if (!op || (op->traits & (Operator::kControl | Operator::kRandom | Operator::kSequences)) ||
      node.outputs.size() != 1)
    return "";
  std::string key = fmt::format("{}.{} {} (", node.domain, node.op, node.opset);
  for (const ValueId id : node.inputs) key += std::to_string(id) + ",";
  std::map<std::string, std::string> attributes;
  for (const auto& [name, value] : node.attributes) {
    if (std::holds_alternative<Constant>(value) || std::holds_alternative<std::shared_ptr<Graph>>(value))
      return "";
    attributes[name] = std::visit(
        [](const auto& v) -> std::string {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, int64_t>)
            return std::to_string(v);
          else if constexpr (std::is_same_v<T, float>)
            return std::to_string(std::bit_cast<uint32_t>(v));
          else if constexpr (std::is_same_v<T, std::string>)
            return fmt::format("{}:{}", v.size(), v);
          else if constexpr (std::is_same_v<T, std::vector<int64_t>>)
            return fmt::format("[{}]", fmt::join(v, ","));
          else if constexpr (std::is_same_v<T, std::vector<float>>) {
            std::string list;
            for (const float item : v) list += std::to_string(std::bit_cast<uint32_t>(item)) + ",";
            return list;
          } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            std::string list;
            for (const std::string& item : v) list += fmt::format("{}:{},", item.size(), item);
            return list;
          } else
            return "";
        },
        value);
  }
  for (const auto& [name, text] : attributes) key += fmt::format("|{}={}", name, text);
  return key;
}

}  // namespace

Result<int> MergeEqual(Rewriter& r, const std::function<void(std::string)>& explain) {
  Graph& graph = r.graph();
  std::map<std::string, size_t> first;
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n)) continue;
    const std::string key = KeyOf(r.node(n));
    if (key.empty()) continue;
    const auto [it, fresh] = first.emplace(key, n);
    if (fresh) continue;
    const ValueId same = r.node(n).outputs[0];
    bool output = false;
    for (const ValueId id : graph.outputs) output |= id == same;
    if (output) continue;  // it keeps its name
    explain(r.node(n).Label() + " is the same as " + r.node(it->second).Label());
    r.Replace(same, r.node(it->second).outputs[0]);
    r.Remove(r.node(n));
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
