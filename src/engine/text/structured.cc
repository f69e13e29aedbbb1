#include "celer/structured.h"

#include <mutex>
#include <utility>

#include "engine/text/grammar_mask.h"
#include "engine/text/prompter.h"

namespace celer {
namespace {

Result<StructuredOutput::Mask> ToMask(Result<Grammar::Pointer> grammar) {
  if (!grammar) return grammar.error();
  return MakeGrammarMask(*std::move(grammar), "");
}

}  // namespace

struct StructuredOutput::Impl {
  explicit Impl(Prompter its_prompter) : prompter(std::move(its_prompter)) {}

  Grammar::Table Table() {
    const std::lock_guard lock(mutex);
    if (!table) table = TokenTable::FromTokenizer(GetTokenizer(prompter), prompter.end_tokens());
    return table;
  }

  const Prompter prompter;
  std::mutex mutex;  // of the next
  Grammar::Table table;
};

StructuredOutput::StructuredOutput(const Prompter& prompter) : impl_(std::make_unique<Impl>(prompter)) {}
StructuredOutput::~StructuredOutput() = default;
StructuredOutput::StructuredOutput(StructuredOutput&&) noexcept = default;
StructuredOutput& StructuredOutput::operator=(StructuredOutput&&) noexcept = default;

Result<StructuredOutput::Mask> StructuredOutput::JsonSchema(std::string_view schema) const {
  return ToMask(Grammar::FromJsonSchema(schema, impl_->Table()));
}
Result<StructuredOutput::Mask> StructuredOutput::JsonObject() const {
  return ToMask(Grammar::FromJsonObject(impl_->Table()));
}
Result<StructuredOutput::Mask> StructuredOutput::Regex(std::string_view pattern) const {
  return ToMask(Grammar::FromRegex(pattern, impl_->Table()));
}
Result<StructuredOutput::Mask> StructuredOutput::Choice(std::span<const std::string> choices) const {
  return ToMask(Grammar::FromChoice(choices, impl_->Table()));
}
Result<StructuredOutput::Mask> StructuredOutput::Gbnf(std::string_view grammar) const {
  return ToMask(Grammar::FromGbnf(grammar, impl_->Table()));
}

}  // namespace celer
