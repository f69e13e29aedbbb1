#include "server/structured.h"

#include <functional>
#include <vector>

namespace celer::server {
namespace {

constexpr size_t kMaxKept = 64;
constexpr std::string_view kThoughtEnd = "</think>";

class GrammarMask : public TokenMask {
 public:
  GrammarMask(Grammar::Pointer grammar, bool after_thought)
      : state_(std::move(grammar)), thinking_(after_thought) {}

  std::unique_ptr<TokenMask> Clone() const override { return std::make_unique<GrammarMask>(*this); }

  void Allow(std::span<uint32_t> bits) override {
    if (!thinking_) return state_.Mask(bits);
    const int tokens = state_.grammar().table().vocab_size();
    for (int token = 0; token < tokens; ++token)
      bits[static_cast<size_t>(token / 32)] |= uint32_t{1} << (token % 32);
  }

  void Accept(int32_t token) override {
    if (!thinking_) {
      state_.Accept(token);
      return;
    }
    tail_ += state_.grammar().table().Bytes(token);
    const size_t end = tail_.find(kThoughtEnd);
    if (end == std::string::npos) {
      if (tail_.size() > 256) tail_.erase(0, tail_.size() - kThoughtEnd.size());
      return;
    }
    thinking_ = false;
    // White space stands between the thought and the answer; other text that came with the tag is the
    // answer's.
    state_.AcceptBytes(std::string_view(tail_).substr(end + kThoughtEnd.size()));
  }

 private:
  GrammarState state_;
  bool thinking_;
  std::string tail_;
};

class BothMasks : public TokenMask {
 public:
  BothMasks(std::unique_ptr<TokenMask> one, std::unique_ptr<TokenMask> other)
      : one_(std::move(one)), other_(std::move(other)) {}
  std::unique_ptr<TokenMask> Clone() const override {
    return std::make_unique<BothMasks>(one_->Clone(), other_->Clone());
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

// How a call of one tool is written.
TriggeredPart PartOf(const Json& tool, ToolStyle style) {
  const Json& function = tool["function"];
  const std::string name = Json(function["name"]).dump();
  TriggeredPart part;
  if (const auto it = function.find("parameters"); it != function.end() && it->is_object() && !it->empty())
    part.schema = it->dump();
  switch (style) {
    case ToolStyle::kTags:
      part.begin = "<tool_call>\n{\"name\": " + name + ", \"arguments\": ";
      part.end = "}\n</tool_call>";
      break;
    case ToolStyle::kBracket:
      part.begin = "[TOOL_CALLS][{\"name\": " + name + ", \"arguments\": ";
      part.end = "}]";
      break;
    default:
      part.begin = "{\"name\": " + name + ", \"parameters\": ";
      part.end = "}";
  }
  return part;
}

}  // namespace

Grammar::Table Grammars::Table() {
  const std::lock_guard lock(mutex_);
  if (!table_) table_ = TokenTable::FromTokenizer(prompter_.tokenizer(), prompter_.end_tokens());
  return table_;
}

Result<Grammar::Pointer> Grammars::Find(const std::string& key,
                                        const std::function<Result<Grammar::Pointer>()>& compile) {
  {
    const std::lock_guard lock(mutex_);
    for (auto it = kept_.begin(); it != kept_.end(); ++it)
      if (it->key == key) {
        kept_.splice(kept_.begin(), kept_, it);
        return it->grammar;
      }
  }
  auto compiled = compile();  // takes long: others must not wait
  if (!compiled) return compiled;
  const std::lock_guard lock(mutex_);
  kept_.push_front({key, *compiled});
  if (kept_.size() > kMaxKept) kept_.pop_back();
  return compiled;
}

Refusal Grammars::MakeMask(const Constraint& constraint, bool after_thought,
                           std::shared_ptr<const TokenMask>* mask) {
  if (constraint.kind == Constraint::Kind::kNone) return {};
  std::string key = std::to_string(static_cast<int>(constraint.kind)) + constraint.text;
  for (const std::string& choice : constraint.choices)
    key += "\n" + std::to_string(choice.size()) + ":" + choice;
  const auto grammar = Find(key, [&] { return Compile(constraint, Table()); });
  if (!grammar) return ApiError{.message = grammar.error().message(), .param = constraint.param};
  *mask = std::make_shared<GrammarMask>(*grammar, after_thought);
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
  options.at_least_one = true;
  options.several = parallel && style == ToolStyle::kTags && choice.kind != ToolChoice::Kind::kNamed;
  options.between = "\n";
  key += options.several ? "+" : "";
  const auto grammar = Find(key, [&] { return Grammar::FromTriggers(parts, options, Table()); });
  if (!grammar) return ApiError{.message = grammar.error().message(), .param = "tools"};
  *mask = std::make_shared<GrammarMask>(*grammar, after_thought);
  return {};
}

std::shared_ptr<const TokenMask> Both(std::shared_ptr<const TokenMask> one,
                                      std::shared_ptr<const TokenMask> other) {
  if (!one) return other;
  if (!other) return one;
  return std::make_shared<BothMasks>(one->Clone(), other->Clone());
}

}  // namespace celer::server
