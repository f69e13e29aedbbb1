// Structured output: token masks that keep an answer to a JSON schema, a regular expression, a list of choices
// or a grammar. docs/structured_output.md says what of JSON Schema is supported.
//
//   StructuredOutput structured(prompter);
//   auto mask = structured.JsonSchema(R"({"type": "object", ...})");
//   request.mask = *mask;
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "celer/engine.h"
#include "celer/error.h"
#include "celer/text.h"

namespace celer {

// For one vocabulary, of which the first call makes a table. Thread-safe; masks outlive it and may be shared by
// requests. Each is compiled anew, which takes milliseconds: keep those that are used again.
class StructuredOutput {
 public:
  using Mask = std::shared_ptr<const TokenMask>;

  explicit StructuredOutput(const Prompter& prompter);
  ~StructuredOutput();
  StructuredOutput(StructuredOutput&&) noexcept;
  StructuredOutput& operator=(StructuredOutput&&) noexcept;

  // Errors name what is not supported with its JSON pointer, or where the text is wrong.
  Result<Mask> JsonSchema(std::string_view schema) const;
  Result<Mask> JsonObject() const;                     // any
  Result<Mask> Regex(std::string_view pattern) const;  // of the whole answer
  Result<Mask> Choice(std::span<const std::string> choices) const;
  Result<Mask> Gbnf(std::string_view grammar) const;  // llama.cpp's form; the start is `root`

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace celer
