#include "server/api/grammar_masks.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "device/thread_priority.h"
#include "engine/text/grammar_mask.h"
#include "engine/text/prompter.h"
#include "server/api/token_masks.h"

namespace celer::server {
namespace {

constexpr size_t kMaxCached = 64, kMaxCachedBytes = size_t{256} << 20;

class MaskIntersection : public TokenMask {
 public:
  MaskIntersection(std::unique_ptr<TokenMask> one, std::unique_ptr<TokenMask> other)
      : one_(std::move(one)), other_(std::move(other)) {}
  std::unique_ptr<TokenMask> Clone() const override {
    return std::make_unique<MaskIntersection>(one_->Clone(), other_->Clone());
  }
  Result<Prepared> Prepare(uint64_t max_work) override {
    CELER_ASSIGN(Prepared one, one_->Prepare(max_work));
    if (!one.ready) return one;
    CELER_ASSIGN(Prepared other, other_->Prepare(max_work - std::min(max_work, one.work)));
    other.work += one.work;
    return other;
  }
  void Allow(std::span<uint32_t> bits) override {
    std::vector<uint32_t> more(bits.size());
    one_->Allow(bits);
    other_->Allow(more);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] &= more[i];
  }
  void Accept(int32_t token) override {
    one_->Accept(token);
    other_->Accept(token);
  }

 private:
  std::unique_ptr<TokenMask> one_, other_;
};

Result<Grammar::Pointer> Compile(const Constraint& constraint, const Grammar::Table& table) {
  switch (constraint.kind) {
    case Constraint::Kind::kJsonObject:
      return Grammar::FromJsonObject(table);
    case Constraint::Kind::kJsonSchema:
      return Grammar::FromJsonSchema(constraint.text, table);
    case Constraint::Kind::kRegex:
      return Grammar::FromRegex(constraint.text, table);
    case Constraint::Kind::kChoice:
      return Grammar::FromChoice(constraint.choices, table);
    case Constraint::Kind::kGrammar:
      return Grammar::FromGbnf(constraint.text, table);
    case Constraint::Kind::kNone:
      break;
  }
  return Error::Invalid("nothing to compile");
}

// The syntax of a call of one tool.
TriggeredPart PartOf(const Json& tool, ToolStyle style) {
  const Json& function = tool["function"];
  TriggeredPart part;
  if (const auto it = function.find("parameters"); it != function.end() && it->is_object() && !it->empty())
    part.schema = it->dump();
  const ToolSyntax& syntax = SyntaxOf(style);
  part.begin = WithName(syntax.required_begin, function["name"].get<std::string>());
  part.end = syntax.required_end;
  return part;
}

}  // namespace

Grammar::Table Grammars::Table(bool with_tags) {
  const std::lock_guard lock(mutex_);
  const bool tagged = with_tags && !tags_.empty();
  Grammar::Table& table = tagged ? tag_table_ : table_;
  if (!table)
    table = TokenTable::FromTokenizer(GetTokenizer(prompter_), prompter_.end_tokens(),
                                      tagged ? std::span(tags_) : std::span<const int32_t>());
  return table;
}

Result<Grammar::Pointer> Grammars::Find(const std::string& key,
                                        const std::function<Result<Grammar::Pointer>()>& compile) {
  {
    const std::lock_guard lock(mutex_);
    for (auto it = cache_.begin(); it != cache_.end(); ++it)
      if (it->key == key) {
        cache_.splice(cache_.begin(), cache_, it);
        return it->grammar;
      }
  }
  // Compiled without the lock, so that others do not wait, and at low priority, below the engine's threads.
  std::optional<Result<Grammar::Pointer>> compiled;
  std::thread([&] {
    LowerThreadPriority();
    compiled = compile();
  }).join();
  if (!*compiled) return *compiled;
  const std::lock_guard lock(mutex_);
  cache_.push_front({key, **compiled});
  // Evicts from the end. Sizes are recomputed, because grammars cache masks and grow while they are used.
  size_t bytes = 0;
  auto it = cache_.begin();
  for (size_t count = 0; it != cache_.end() && count < kMaxCached; ++it, ++count) {
    bytes += it->grammar->bytes() + it->key.size();
    if (bytes > kMaxCachedBytes && count > 0) break;
  }
  cache_.erase(it, cache_.end());
  return *compiled;
}

Refusal Grammars::MakeMask(const Constraint& constraint, bool after_thought,
                           std::shared_ptr<const TokenMask>* mask) {
  if (constraint.kind == Constraint::Kind::kNone) return {};
  // The tag behind thoughts may be a control token.
  std::string key =
      (after_thought ? "behind " : "") + std::to_string(static_cast<int>(constraint.kind)) + constraint.text;
  for (const std::string& choice : constraint.choices)
    key += "\n" + std::to_string(choice.size()) + ":" + choice;
  const auto grammar = Find(key, [&] { return Compile(constraint, Table(after_thought)); });
  if (!grammar) return ApiError{.message = grammar.error().message(), .param = constraint.param};
  *mask = MakeGrammarMask(*grammar, after_thought ? thought_end_ : "");
  return {};
}

Refusal Grammars::MakeToolMask(const ToolChoice& choice, const Json& tools, ToolStyle style, bool parallel,
                               bool after_thought, std::shared_ptr<const TokenMask>* mask) {
  std::vector<TriggeredPart> parts;
  std::string key = "tools";
  for (const Json& tool : tools) {
    if (choice.kind == ToolChoice::Kind::kNamed && tool["function"]["name"] != choice.name) continue;
    parts.push_back(PartOf(tool, style));
    key += "\n" + parts.back().begin + parts.back().schema;
  }
  TriggerOptions options;
  options.free_text = false;
  // What all calls begin with: their names may be long and many.
  const std::string_view begin = SyntaxOf(style).required_begin;
  options.triggers = {std::string(begin.substr(0, begin.find_first_of("$@")))};
  options.at_least_one = true;
  options.several = parallel && SyntaxOf(style).several && choice.kind != ToolChoice::Kind::kNamed;
  options.between = "\n";
  key += options.several ? "+" : "";
  const auto grammar = Find(key, [&] { return Grammar::FromTriggers(parts, options, Table(true)); });
  if (!grammar) return ApiError{.message = grammar.error().message(), .param = "tools"};
  *mask = MakeGrammarMask(*grammar, after_thought ? thought_end_ : "");
  return {};
}

std::shared_ptr<const TokenMask> IntersectMasks(std::shared_ptr<const TokenMask> one,
                                                std::shared_ptr<const TokenMask> other) {
  if (!one) return other;
  if (!other) return one;
  return std::make_shared<MaskIntersection>(one->Clone(), other->Clone());
}

}  // namespace celer::server
