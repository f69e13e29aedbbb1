// What a family's TensorRules say of one name: as which parts a tensor is read, and which of its rows each of them has.
#pragma once

#include <cstdint>
#include <string>

#include "models/config/tensor_rules.h"

namespace celer {

// Where the rows of a part are among those of a tensor: `run` together, the first ones at `first`, then again every
// `period` rows.
struct RowMap {
  int64_t first = 0, run = 0, period = 0;
  int64_t operator()(int64_t row) const { return first + row / run * period + row % run; }
};
RowMap MapOf(const TensorRule& rule, size_t part);

bool IsSkipped(const TensorRules& rules, const std::string& name);
// Without the beginning that rules know.
std::string WithoutPrefix(const TensorRules& rules, const std::string& name);
// Of a name without prefix: the rule of that very name, or of its pattern; nullptr if it has none.
const TensorRule* RuleOf(const TensorRules& rules, const std::string& name);

}  // namespace celer
