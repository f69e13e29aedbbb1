#include "models/load/find_rule.h"

#include <algorithm>

#include "models/load/tensor_names.h"

namespace celer {

RowMap MapOf(const TensorRule& rule, size_t part) {
  RowMap map{.first = 0, .run = rule.parts[part].rows, .period = rule.RowsOfGroup()};
  for (size_t i = 0; i < part; ++i) map.first += rule.parts[i].rows;
  return map;
}

bool IsSkipped(const TensorRules& rules, const std::string& name) {
  return std::any_of(rules.skipped().begin(), rules.skipped().end(),
                     [&](const auto& row) { return name.starts_with(row.first); });
}

std::string WithoutPrefix(const TensorRules& rules, const std::string& name) {
  for (const auto& [begin, becomes] : rules.prefixes())
    if (name.starts_with(begin)) return becomes + name.substr(begin.size());
  return name;
}

const TensorRule* RuleOf(const TensorRules& rules, const std::string& name) {
  auto found = rules.rules().find(name);
  if (found == rules.rules().end()) found = rules.rules().find(PatternOf(name).pattern);
  return found == rules.rules().end() ? nullptr : &found->second;
}

}  // namespace celer
