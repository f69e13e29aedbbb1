#include "text/grammar/grammar.h"

#include <algorithm>

#include "core/check.h"
#include "io/printable.h"
#include "text/grammar/automaton.h"
#include "text/grammar/expression.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/json_text.h"
#include "text/grammar/mask_cache.h"
#include "text/grammar/regex.h"
#include "text/grammar/triggers.h"
#include "text/grammar/walker.h"

namespace celer {

namespace grammar {

struct Compiled {
  Compiled(Automaton made, std::shared_ptr<const TokenTable> table, const GrammarLimits& limits)
      : automaton(std::move(made)), masks(automaton, std::move(table), limits.max_cache_bytes) {
    masks.Precompute(limits.max_mask_steps);
  }
  Automaton automaton;
  MaskCache masks;
};

namespace {

// Readings of a text that one answer follows. A mask follows at most 512 for each of its items, so a token
// that it allows is still there when all items take it together.
constexpr size_t kMaxItems = 512, kMaxItemsInToken = 16384;

Status CheckSize(std::string_view what, size_t bytes, const GrammarLimits& limits) {
  if (bytes <= limits.max_source_bytes) return {};
  return Error::Invalid("the ", what, " has ", bytes, " bytes, at most ", limits.max_source_bytes,
                        " are accepted");
}

Budget BudgetOf(const GrammarLimits& limits, const TokenTable& table) {
  return {limits.max_steps, limits.max_states, std::max<size_t>(table.longest(), 1)};
}

}  // namespace
}  // namespace grammar

using grammar::Automaton;
using grammar::Budget;
using grammar::Frame;
using grammar::Item;
using grammar::kBottom;
using grammar::RuleSet;
using grammar::Walker;

Grammar::Grammar(std::unique_ptr<grammar::Compiled> compiled) : compiled_(std::move(compiled)) {}
Grammar::~Grammar() = default;

const TokenTable& Grammar::table() const {
  return compiled_->masks.table();
}
size_t Grammar::states() const {
  return compiled_->automaton.size();
}
size_t Grammar::bytes() const {
  return compiled_->automaton.bytes() + compiled_->masks.bytes();
}

Result<Grammar::Pointer> Grammar::Make(const RuleSet& rules, uint32_t root, Table table,
                                       const GrammarLimits& limits, Budget& budget) {
  CELER_ASSIGN(Automaton automaton, Automaton::Make(rules, root, limits.max_depth, budget));
  return Pointer(
      new Grammar(std::make_unique<grammar::Compiled>(std::move(automaton), std::move(table), limits)));
}

Result<Grammar::Pointer> Grammar::FromJsonSchema(std::string_view schema, Table table,
                                                 const JsonOptions& options, const GrammarLimits& limits) {
  CELER_RETURN_IF_ERROR(grammar::CheckSize("JSON schema", schema.size(), limits));
  Budget budget = grammar::BudgetOf(limits, *table);
  RuleSet rules;
  CELER_ASSIGN(const uint32_t root, grammar::AddJsonSchema(schema, options, rules, budget));
  return Make(rules, root, std::move(table), limits, budget);
}

Result<Grammar::Pointer> Grammar::FromJsonObject(Table table, const JsonOptions& options,
                                                 const GrammarLimits& limits) {
  return FromJsonSchema(R"({"type": "object"})", std::move(table), options, limits);
}

Result<Grammar::Pointer> Grammar::FromRegex(std::string_view pattern, Table table,
                                            const GrammarLimits& limits) {
  CELER_RETURN_IF_ERROR(grammar::CheckSize("regular expression", pattern.size(), limits));
  Budget budget = grammar::BudgetOf(limits, *table);
  RuleSet rules;
  const uint32_t root = rules.AddRule("root");
  CELER_ASSIGN(grammar::Dfa dfa, grammar::RegexDfa(pattern, grammar::RegexOptions{}, budget));
  rules.SetBody(root, rules.Automaton(std::move(dfa)));
  return Make(rules, root, std::move(table), limits, budget);
}

Result<Grammar::Pointer> Grammar::FromChoice(std::span<const std::string> choices, Table table,
                                             const GrammarLimits& limits) {
  if (choices.empty()) return Error::Invalid("the list of choices is empty; give at least one");
  Budget budget = grammar::BudgetOf(limits, *table);
  RuleSet rules;
  std::vector<grammar::ExprId> parts;
  size_t bytes = 0;
  for (const std::string& choice : choices) {
    bytes += choice.size();
    parts.push_back(rules.Literal(choice));
  }
  CELER_RETURN_IF_ERROR(grammar::CheckSize("list of choices", bytes, limits));
  const uint32_t root = rules.AddRule("root");
  rules.SetBody(root, rules.Choice(std::move(parts)));
  return Make(rules, root, std::move(table), limits, budget);
}

Result<Grammar::Pointer> Grammar::FromGbnf(std::string_view text, Table table, const GrammarLimits& limits) {
  CELER_RETURN_IF_ERROR(grammar::CheckSize("grammar", text.size(), limits));
  Budget budget = grammar::BudgetOf(limits, *table);
  RuleSet rules;
  CELER_ASSIGN(const uint32_t root, grammar::AddGbnf(text, rules, budget));
  return Make(rules, root, std::move(table), limits, budget);
}

Result<Grammar::Pointer> Grammar::FromTriggers(std::span<const TriggeredPart> parts,
                                               const TriggerOptions& options, Table table,
                                               const GrammarLimits& limits) {
  size_t bytes = 0;
  for (const TriggeredPart& part : parts) bytes += part.begin.size() + part.schema.size() + part.end.size();
  CELER_RETURN_IF_ERROR(grammar::CheckSize("list of triggered parts", bytes, limits));
  Budget budget = grammar::BudgetOf(limits, *table);
  RuleSet rules;
  CELER_ASSIGN(const uint32_t root, grammar::AddTriggers(parts, options, rules, budget));
  return Make(rules, root, std::move(table), limits, budget);
}

GrammarState::GrammarState(Grammar::Pointer grammar) : grammar_(std::move(grammar)) {
  Walker walker(grammar_->compiled_->automaton, grammar::kMaxItems);
  walker.Reset({});
  walker.AddClosed({grammar_->compiled_->automaton.start(), kBottom});
  Take(walker, 0);
}

GrammarState::GrammarState(const GrammarState&) = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(const GrammarState&) = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;
GrammarState::~GrammarState() = default;

// Keeps the places of one level, with the frames that they use.
void GrammarState::Take(const Walker& walker, size_t level) {
  std::vector<Item> items;
  for (const Item& item : walker.Items(level)) {
    if (items.size() == grammar::kMaxItems) break;
    // The others have passed on what they are for.
    if (grammar_->compiled_->automaton.TakesBytes(item.state)) items.push_back(item);
  }
  std::vector<uint32_t> used;
  for (const Item& item : items)
    for (uint32_t frame = item.frame; frame != kBottom; frame = walker.frame(frame).parent)
      used.push_back(frame);
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  // A frame lies behind its parent, so parents have their new place first. Equal frames become one.
  std::vector<uint32_t> place(used.size());
  const auto new_place = [&](uint32_t frame) {
    if (frame == kBottom) return kBottom;
    return place[static_cast<size_t>(std::lower_bound(used.begin(), used.end(), frame) - used.begin())];
  };
  std::vector<Frame> frames;
  for (size_t i = 0; i < used.size(); ++i) {
    Frame frame = walker.frame(used[i]);
    frame.parent = new_place(frame.parent);
    const auto at = std::find(frames.begin(), frames.end(), frame);
    place[i] = static_cast<uint32_t>(at - frames.begin());
    if (at == frames.end()) frames.push_back(frame);
  }
  items_.clear();
  for (const Item& item : items) {
    const Item kept{item.state, new_place(item.frame)};
    if (std::find(items_.begin(), items_.end(), kept) == items_.end()) items_.push_back(kept);
  }
  frames_ = std::move(frames);
  may_end_ = walker.Ended(level);
}

void GrammarState::Mask(std::span<uint32_t> bits) const {
  const TokenTable& table = grammar_->table();
  CELER_CHECK(bits.size() >= table.mask_words());
  std::fill(bits.begin(), bits.end(), 0);
  if (!ended_)
    for (const Item& item : items_) grammar_->compiled_->masks.AddTokens(item, frames_, bits);
  if (may_end_ || ended_)
    for (const int32_t id : table.end_tokens()) bits[id / 32] |= uint32_t{1} << id % 32;
}

bool GrammarState::Accept(int32_t token) {
  const TokenTable& table = grammar_->table();
  if (table.IsEnd(token)) {
    if (!may_end_ && !ended_) return false;
    ended_ = true;
    return true;
  }
  const std::string_view bytes = table.Bytes(token);
  return !bytes.empty() && AcceptBytes(bytes);
}

bool GrammarState::AcceptBytes(std::string_view bytes) {
  if (ended_) return false;
  if (bytes.empty()) return true;
  Walker walker(grammar_->compiled_->automaton, grammar::kMaxItemsInToken);
  walker.Reset(frames_);
  for (const Item& item : items_) walker.AddAlone(item);
  for (size_t i = 0; i < bytes.size(); ++i)
    if (!walker.Step(i, static_cast<uint8_t>(bytes[i]))) return false;
  Take(walker, bytes.size());
  return true;
}

bool GrammarState::must_end() const {
  return ended_ || (may_end_ && items_.empty());
}

std::string GrammarState::ShortestEnd() const {
  const Automaton& automaton = grammar_->compiled_->automaton;
  GrammarState at = *this;
  std::string out;
  // The way that is left of an item: that of its rule, and that of every frame below.
  const auto distance = [&](const Walker& walker, const Item& item) {
    uint64_t sum = automaton.Distance(item.state);
    for (uint32_t frame = item.frame; frame != kBottom; frame = walker.frame(frame).parent)
      sum += automaton.Distance(walker.frame(frame).to);
    return sum;
  };
  // The bound is there for answers near the limit of the stack, where the shortest way may be barred.
  while (!at.may_end_ && !at.ended_ && out.size() < (size_t{1} << 20)) {
    Walker walker(automaton, grammar::kMaxItems);
    walker.Reset(at.frames_);
    for (const Item& item : at.items_) walker.AddAlone(item);
    uint64_t best = ~uint64_t{0};
    int best_byte = -1;
    for (int byte = 0; byte < 256; ++byte) {
      if (!walker.Step(0, static_cast<uint8_t>(byte))) continue;
      uint64_t left = walker.Ended(1) ? 0 : ~uint64_t{0} - 1;
      for (const Item& item : walker.Items(1)) left = std::min(left, distance(walker, item));
      if (left >= best) continue;
      best = left;
      best_byte = byte;
    }
    if (best_byte < 0) break;
    const char c = static_cast<char>(best_byte);
    if (!at.AcceptBytes({&c, 1})) break;
    out += c;
  }
  return out;
}

}  // namespace celer
