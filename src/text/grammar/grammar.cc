#include "text/grammar/grammar.h"

#include <algorithm>

#include "base/check.h"
#include "io/file/printable.h"
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
  Compiled(Automaton made, std::shared_ptr<const TokenTable> table, const GrammarLimits& limits_)
      : limits(limits_),
        automaton(std::move(made)),
        masks(automaton, std::move(table), limits.max_cache_bytes) {
    masks.Precompute(limits.max_mask_steps);
  }
  GrammarLimits limits;
  Automaton automaton;
  MaskCache masks;
};

namespace {

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
using grammar::Effort;
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
const GrammarLimits& Grammar::limits() const {
  return compiled_->limits;
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

// The epsilon closure of the start: its work is bounded by the calls of the grammar.
GrammarState::GrammarState(Grammar::Pointer grammar) : grammar_(std::move(grammar)) {
  Effort effort{grammar_->limits().max_token_steps};
  Walker walker(grammar_->compiled_->automaton, effort);
  walker.Reset({});
  const Item start{grammar_->compiled_->automaton.start(), kBottom};
  walker.StartClosed({&start, 1});
  Take(walker, 0);
}

GrammarState::GrammarState(const GrammarState&) = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(const GrammarState&) = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;
GrammarState::~GrammarState() = default;

// Keeps the items of one level, with the frames that they use.
void GrammarState::Take(const Walker& walker, size_t level) {
  std::vector<Item> items;
  // The others have passed on what they are for.
  for (const Item& item : walker.Items(level))
    if (grammar_->compiled_->automaton.TakesBytes(item.state)) items.push_back(item);
  // Compaction of the frames (mark and sweep): a frame lies behind its parent and its next alternative, so
  // one pass from the last to the first marks what is used, and one from the first to the last assigns new
  // indices.
  std::vector<uint32_t> place(walker.frame_count(), kBottom);
  constexpr uint32_t kUsed = 0;
  const auto use = [&](uint32_t frame) {
    if (frame != kBottom) place[frame] = kUsed;
  };
  for (const Item& item : items) use(item.frame);
  for (size_t i = place.size(); i-- > 0;) {
    if (place[i] == kBottom) continue;
    use(walker.frame(static_cast<uint32_t>(i)).parent);
    use(walker.frame(static_cast<uint32_t>(i)).other);
  }
  const auto new_place = [&](uint32_t frame) { return frame == kBottom ? kBottom : place[frame]; };
  std::vector<Frame> frames;
  for (size_t i = 0; i < place.size(); ++i) {
    if (place[i] == kBottom) continue;
    Frame frame = walker.frame(static_cast<uint32_t>(i));
    frame.parent = new_place(frame.parent);
    frame.other = new_place(frame.other);
    place[i] = static_cast<uint32_t>(frames.size());
    frames.push_back(frame);
  }
  for (Item& item : items) item.frame = new_place(item.frame);
  items_ = std::move(items);
  frames_ = std::move(frames);
  may_end_ = walker.Ended(level);
}

bool GrammarState::Mask(std::span<uint32_t> bits, Effort& effort) const {
  const TokenTable& table = grammar_->table();
  CELER_CHECK(bits.size() >= table.mask_words());
  std::fill(bits.begin(), bits.end(), 0);
  if (!ended_)
    for (const Item& item : items_)
      if (!grammar_->compiled_->masks.AddTokens(item, frames_, bits, effort)) {
        std::fill(bits.begin(), bits.end(), 0);
        return false;
      }
  if (may_end_ || ended_)
    for (const int32_t id : table.end_tokens()) bits[id / 32] |= uint32_t{1} << id % 32;
  return true;
}

void GrammarState::Mask(std::span<uint32_t> bits) const {
  Effort effort{grammar_->limits().max_token_steps};
  Mask(bits, effort);
}

GrammarState::Step GrammarState::Accept(int32_t token, Effort& effort) {
  const TokenTable& table = grammar_->table();
  if (table.IsEnd(token)) {
    if (!may_end_ && !ended_) return Step::kBarred;
    ended_ = true;
    return Step::kTaken;
  }
  const std::string_view bytes = table.Bytes(token);
  return bytes.empty() ? Step::kBarred : Walk(bytes, effort);
}

bool GrammarState::Accept(int32_t token) {
  Effort effort{grammar_->limits().max_token_steps};
  return Accept(token, effort) == Step::kTaken;
}

GrammarState::Step GrammarState::Walk(std::string_view bytes, Effort& effort) {
  if (ended_) return Step::kBarred;
  if (bytes.empty()) return Step::kTaken;
  Walker walker(grammar_->compiled_->automaton, effort);
  walker.Reset(frames_);
  walker.Start(items_);
  for (size_t i = 0; i < bytes.size(); ++i)
    if (!walker.Step(i, static_cast<uint8_t>(bytes[i])))
      return effort.exceeded() ? Step::kExceeded : Step::kBarred;
  Take(walker, bytes.size());
  return Step::kTaken;
}

// In pieces, so that a long text has the effort of each of its tokens and no more places than one.
bool GrammarState::AcceptBytes(std::string_view bytes) {
  if (ended_) return false;
  constexpr size_t kPiece = 64;
  GrammarState at = *this;
  for (size_t begin = 0; begin < bytes.size(); begin += kPiece) {
    Effort effort{grammar_->limits().max_token_steps};
    if (at.Walk(bytes.substr(begin, kPiece), effort) != Step::kTaken) return false;
  }
  *this = std::move(at);
  return true;
}

Error GrammarState::TooMuchWork() const {
  const Automaton& automaton = grammar_->compiled_->automaton;
  std::string rules;
  std::vector<std::string_view> named;
  for (const Item& item : items_) {
    const std::string_view name = automaton.RuleOf(item.state);
    if (named.size() == 3 || std::find(named.begin(), named.end(), name) != named.end()) continue;
    rules += (named.empty() ? "'" : ", '") + Printable(name) + "'";
    named.push_back(name);
  }
  return Error::Unsupported("the grammar is too ambiguous: within ", named.size() > 1 ? "rules " : "rule ",
                            rules, " the tokens that may come next take more than ",
                            grammar_->limits().max_token_steps, " steps to find (it has ", automaton.size(),
                            " states, and ", items_.size(),
                            " places fit the text so far); let alternatives begin differently, and nest "
                            "optional and repeated parts less");
}

bool GrammarState::must_end() const {
  return ended_ || (may_end_ && items_.empty());
}

std::string GrammarState::ShortestEnd() const {
  const Automaton& automaton = grammar_->compiled_->automaton;
  GrammarState at = *this;
  std::string out;
  // The shortest completion of an item: that of its rule, and that of the best frames below.
  std::vector<uint64_t> below;  // by frame, as far as they are known
  const auto distance = [&](const Walker& walker, const Item& item) {
    // Parents and alternatives lie before a frame.
    for (size_t i = below.size(); i < walker.frame_count(); ++i) {
      const Frame& frame = walker.frame(static_cast<uint32_t>(i));
      uint64_t least = automaton.Distance(frame.to) + (frame.parent == kBottom ? 0 : below[frame.parent]);
      if (frame.other != kBottom) least = std::min(least, below[frame.other]);
      below.push_back(least);
    }
    return automaton.Distance(item.state) + (item.frame == kBottom ? 0 : below[item.frame]);
  };
  // The bound is there for answers near the limit of the stack, where the shortest way may be barred.
  while (!at.may_end_ && !at.ended_ && out.size() < (size_t{1} << 20)) {
    Effort effort{grammar_->limits().max_token_steps};
    Walker walker(automaton, effort);
    walker.Reset(at.frames_);
    walker.Start(at.items_);
    uint64_t best = ~uint64_t{0};
    int best_byte = -1;
    for (int byte = 0; byte < 256; ++byte) {
      if (!walker.Step(0, static_cast<uint8_t>(byte))) continue;
      uint64_t left = walker.Ended(1) ? 0 : ~uint64_t{0} - 1;
      below.clear();
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
