// The expressions of pnnx.Expression: arithmetic that PyTorch wrote in one line, kept in one operator.
//
//   expression := name '(' expression {',' expression} ')'
//               | '[' [expression {',' expression}] ']'
//               | '@' number
//               | literal
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace celer::graph {

struct Expression {
  enum class Kind : uint8_t { kCall, kList, kInput, kInt, kFloat, kBool, kNone, kText };

  Kind kind = Kind::kNone;
  std::string name = {};               // of a call; the text of a kText
  int64_t number = 0;                  // kInput: which; kInt, kBool
  double value = 0;                    // kFloat
  std::vector<Expression> items = {};  // arguments, or what is in a list
};

// One sentence with the place if it is none: "'add(@0': expected ',' or ')' at 7".
Result<Expression> ParseExpression(std::string_view text);
std::string Print(const Expression& expression);

}  // namespace celer::graph
