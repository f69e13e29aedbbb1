// Template text to tokens, with Jinja's whitespace rules under trim_blocks and lstrip_blocks (the way chat
// templates are always read): the newline after a block tag goes, and so does the indentation before one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/template/jinja/value.h"

namespace celer::jinja {

enum class TokenKind : uint8_t {
  kData,        // text outside of tags
  kVarBegin,    // {{
  kVarEnd,      // }}
  kBlockBegin,  // {%
  kBlockEnd,    // %}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 0;
  std::string text;  // the name, operator, data, or the string after its escapes
  Int integer = 0;
  double number = 0;

  bool IsName(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool IsOp(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
};

// Throws TemplateError. `source` must be valid UTF-8. The last token is kEnd.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace celer::jinja
