#include "text/grammar/json_schema.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "io/file/printable.h"
#include "io/json/json.h"
#include "text/grammar/dfa.h"
#include "text/grammar/json_text.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema_constraints.h"

namespace celer::grammar {
namespace {

constexpr size_t kMaxRules = 20'000;
constexpr uint32_t kMaxListedItems = 100'000;
constexpr uint32_t kMaxListedProperties = 1000;

class Compiler {
 public:
  Compiler(const Json& document, const JsonOptions& options, RuleSet& rules, Budget& budget)
      : document_(document),
        rules_(rules),
        budget_(budget),
        reader_(document, options.type_from_keywords, budget),
        text_(rules, options.space) {}

  Result<RuleId> Run() {
    CELER_ASSIGN(const RuleId root, RuleOf({{&document_, "#"}}));
    for (; !open_.empty(); open_.pop_front()) {
      CELER_ASSIGN(const ExprId body, Body(open_.front().second));
      rules_.SetBody(open_.front().first, body);
    }
    return root;
  }

 private:
  // One rule for each set of schemas, so that schemas may refer to themselves. Its body is made later: a
  // chain of references may be long.
  Result<RuleId> RuleOf(Members members) {
    std::vector<std::pair<const Json*, int>> key;
    for (const Member& member : members)
      key.emplace_back(member.node, 2 * member.any_chosen + member.one_chosen);
    std::sort(key.begin(), key.end());
    key.erase(std::unique(key.begin(), key.end()), key.end());
    if (!budget_.Spend(32 + key.size())) return budget_.TooManySteps();
    const auto [at, is_new] = known_.emplace(std::move(key), 0);
    if (!is_new) return at->second;
    if (known_.size() > kMaxRules)
      return Error::Unsupported("schema: '", Printable(members[0].pointer), "' is one schema more than the ",
                                kMaxRules, " that are supported; make the schema smaller");
    at->second = rules_.AddRule(members.empty() ? "#" : members[0].pointer);
    open_.emplace_back(at->second, std::move(members));
    return at->second;
  }

  Result<ExprId> Value(const Members& members) {
    if (members.empty()) return text_.Value();
    CELER_ASSIGN(const RuleId rule, RuleOf(members));
    return rules_.Call(rule);
  }

  // Whether nothing at all can be valid, as far as booleans say so.
  Result<bool> IsFalse(const Members& members) {
    CELER_ASSIGN(const auto flat, reader_.Flatten(members));
    return !flat;
  }

  Result<ExprId> Body(const Members& members) {
    CELER_ASSIGN(const auto flat, reader_.Flatten(members));
    if (!flat) return rules_.Never();
    if (flat->empty()) return text_.Value();
    CELER_ASSIGN(const auto open, reader_.OpenBranches(*flat));
    if (!open) {
      CELER_ASSIGN(const Constraints constraints, reader_.Gather(*flat));
      return Typed(constraints);
    }
    if (open->exclusive)
      for (size_t i = 0; i < open->branches.size(); ++i)
        for (size_t j = i + 1; j < open->branches.size(); ++j) {
          CELER_ASSIGN(const bool disjoint, reader_.Disjoint(open->branches[i], open->branches[j], 0));
          if (!disjoint)
            return Error::Unsupported("schema: '", Printable(open->pointer),
                                      "' is not supported: a value may fit both branch ", i, " and branch ",
                                      j, "; write anyOf, or tell them apart by 'type' or a required 'const'");
        }
    std::vector<ExprId> parts;
    for (const Members& branch : open->branches) {
      CELER_ASSIGN(const ExprId part, Value(branch));
      parts.push_back(part);
    }
    return rules_.Choice(std::move(parts));
  }

  Result<ExprId> Typed(const Constraints& constraints) {
    if (constraints.listed) {
      std::vector<ExprId> values;
      for (const Json& value : constraints.values) values.push_back(text_.Literal(value));
      return rules_.Choice(std::move(values));
    }
    std::vector<ExprId> parts;
    if (constraints.types & kNull) parts.push_back(text_.Null());
    if (constraints.types & kBoolean) parts.push_back(text_.Boolean());
    if (constraints.types & kNumber) {
      CELER_ASSIGN(const ExprId number, Number(constraints));
      parts.push_back(number);
    }
    if (constraints.types & kString) {
      CELER_ASSIGN(const ExprId string, String(constraints));
      parts.push_back(string);
    }
    if (constraints.types & kArray) {
      CELER_ASSIGN(const ExprId array, Array(constraints));
      parts.push_back(array);
    }
    if (constraints.types & kObject) {
      CELER_ASSIGN(const ExprId object, Object(constraints));
      parts.push_back(object);
    }
    return rules_.Choice(std::move(parts));
  }

  Result<ExprId> Number(const Constraints& constraints) {
    // A multiple of an integer is an integer.
    const bool integer = !(constraints.types & kFraction) || !constraints.factors.empty();
    if (!constraints.range.low && !constraints.range.high && constraints.factors.empty())
      return integer ? text_.Integer() : text_.Number();
    CELER_ASSIGN(Dfa dfa, RangeDfa(constraints.range, integer, budget_));
    for (const uint32_t factor : constraints.factors) {
      CELER_ASSIGN(dfa, CombineDfas(dfa, MultipleDfa(factor), Combine::kAnd, budget_));
    }
    return rules_.Automaton(std::move(dfa));
  }

  Result<ExprId> String(const Constraints& constraints) {
    if (constraints.min_length > constraints.max_length) return rules_.Never();
    if (constraints.patterns.empty() && constraints.formats.empty()) {
      if (constraints.min_length > budget_.max_states() ||
          (constraints.max_length != kUnbounded && constraints.max_length > budget_.max_states()))
        return Error::Unsupported("schema: '", Printable(constraints.pointer),
                                  "': lengths of strings are supported up to ", budget_.max_states(),
                                  " characters");
      return text_.String(constraints.min_length, constraints.max_length);
    }
    CELER_ASSIGN(Dfa dfa, reader_.StringDfa(constraints));
    return text_.Quoted(rules_.Automaton(std::move(dfa)));
  }

  Result<ExprId> Array(const Constraints& constraints) {
    if (!constraints.array_keywords) return text_.Array();
    CELER_ASSIGN(const bool no_others, IsFalse(constraints.other_items));
    const auto first = static_cast<uint32_t>(constraints.first_items.size());
    uint32_t most = constraints.max_items;
    if (no_others) most = std::min(most, first);
    if (constraints.min_items > most) return rules_.Never();
    const uint32_t chain = most != kUnbounded ? most : std::max({first, constraints.min_items, 1u});
    if (chain > kMaxListedItems)
      return Error::Unsupported("schema: '", Printable(constraints.pointer),
                                "': minItems and maxItems are supported up to ", kMaxListedItems);
    // Node i + 1: i items are written. Node 0 is before the bracket.
    std::vector<GraphEdge> edges{{0, 1, text_.Open('[')}};
    const uint32_t end = chain + 2;
    ExprId other = rules_.Never();
    if (!no_others) {
      CELER_ASSIGN(other, Value(constraints.other_items));
    }
    const ExprId comma = text_.Comma(), close = text_.Close(']');
    for (uint32_t i = 0; i < chain; ++i) {
      ExprId item = other;
      if (i < first) {
        CELER_ASSIGN(item, Value(constraints.first_items[i]));
      }
      edges.push_back({i + 1, i + 2, i == 0 ? item : rules_.Sequence({comma, item})});
    }
    if (most == kUnbounded) edges.push_back({chain + 1, chain + 1, rules_.Sequence({comma, other})});
    for (uint32_t i = constraints.min_items; i <= chain; ++i) edges.push_back({i + 1, end, close});
    return rules_.Graph(end + 1, std::move(edges));
  }

  // The names that are allowed besides the listed ones, by kind, each with its value.
  Result<std::vector<ExprId>> Extras(const Constraints& constraints, const std::optional<Dfa>& names) {
    std::vector<ExprId> out;
    CELER_ASSIGN(const bool no_others, IsFalse(constraints.other_names));
    if (no_others && constraints.patterns_of_names.empty()) return out;
    if (constraints.properties.empty() && constraints.patterns_of_names.empty() && !names) {
      CELER_ASSIGN(const ExprId value, Value(constraints.other_names));
      out.push_back(rules_.Sequence({text_.String(), text_.Colon(), value}));
      return out;
    }
    RuleSet listed;
    std::vector<ExprId> literals;
    for (const KeyedSchema& property : constraints.properties)
      literals.push_back(listed.Literal(PlainJsonString(property.name)));
    CELER_ASSIGN(const Dfa taken, MakeDfa(listed, listed.Choice(std::move(literals)), budget_));
    RuleSet any_rules;
    CELER_ASSIGN(
        Dfa rest,
        MakeDfa(any_rules, any_rules.Repeat(PlainJsonChar(any_rules, CodePointSet::All()), 0, kUnbounded),
                budget_));
    if (names) {
      CELER_ASSIGN(rest, CombineDfas(rest, *names, Combine::kAnd, budget_));
    }
    CELER_ASSIGN(rest, CombineDfas(rest, taken, Combine::kAndNot, budget_));
    const auto add = [&](Dfa keys, const Members& values) -> Status {
      CELER_ASSIGN(const bool never, IsFalse(values));
      if (never || keys.states.empty()) return {};
      CELER_ASSIGN(const ExprId value, Value(values));
      out.push_back(rules_.Sequence({text_.Quoted(rules_.Automaton(std::move(keys))), text_.Colon(), value}));
      return {};
    };
    std::vector<Dfa> matched;
    for (const KeyedSchema& pattern : constraints.patterns_of_names) {
      CELER_ASSIGN(const Dfa matches, RegexDfa(pattern.name, {.search = true, .json_text = true}, budget_));
      for (const Dfa& other : matched) {
        CELER_ASSIGN(const Dfa common, CombineDfas(matches, other, Combine::kAnd, budget_));
        if (!common.states.empty())
          return Error::Unsupported("schema: '",
                                    Printable(PointerTo(constraints.pointer, "patternProperties")),
                                    "' is not supported: a name may match two patterns, one of them '",
                                    Printable(pattern.name), "'");
      }
      CELER_ASSIGN(Dfa keys, CombineDfas(rest, matches, Combine::kAnd, budget_));
      CELER_RETURN_IF_ERROR(add(std::move(keys), pattern.value));
      matched.push_back(matches);
    }
    for (const Dfa& matches : matched) {
      CELER_ASSIGN(rest, CombineDfas(rest, matches, Combine::kAndNot, budget_));
    }
    CELER_RETURN_IF_ERROR(add(std::move(rest), constraints.other_names));
    return out;
  }

  // What `propertyNames` lets through; nullopt if it says nothing.
  Result<std::optional<Dfa>> Names(const Constraints& constraints) {
    if (constraints.names.empty()) return std::optional<Dfa>();
    CELER_ASSIGN(const auto flat, reader_.Flatten(constraints.names));
    if (!flat) return std::optional<Dfa>(Dfa{});
    CELER_ASSIGN(const auto open, reader_.OpenBranches(*flat));
    if (open)
      return Error::Unsupported("schema: '", Printable(open->pointer),
                                "' is not supported in 'propertyNames'");
    CELER_ASSIGN(const Constraints of_name, reader_.Gather(*flat));
    if (!(of_name.types & kString)) return std::optional<Dfa>(Dfa{});
    CELER_ASSIGN(Dfa dfa, reader_.StringDfa(of_name));
    return std::optional<Dfa>(std::move(dfa));
  }

  Result<ExprId> Object(const Constraints& constraints) {
    if (!constraints.object_keywords) return text_.Object();
    CELER_ASSIGN(const auto names, Names(constraints));
    const auto is_required = [&](const std::string& name) {
      return std::find(constraints.required.begin(), constraints.required.end(), name) !=
             constraints.required.end();
    };
    struct Listed {
      ExprId member;
      bool required;
    };
    std::vector<Listed> listed;
    size_t required = 0;
    for (const KeyedSchema& property : constraints.properties) {
      CELER_ASSIGN(bool never, IsFalse(property.value));
      const std::string name = PlainJsonString(property.name);
      never |= names && !names->Accepts(name);
      const bool must = is_required(property.name);
      if (never && must) return rules_.Never();
      if (never) continue;
      CELER_ASSIGN(const ExprId value, Value(property.value));
      listed.push_back({rules_.Sequence({rules_.Literal('"' + name + '"'), text_.Colon(), value}), must});
      required += must;
    }
    CELER_ASSIGN(const std::vector<ExprId> extras, Extras(constraints, names));
    const uint32_t least = constraints.min_properties;
    const bool counted = constraints.max_properties < listed.size() ||
                         (!extras.empty() && constraints.max_properties != kUnbounded);
    const uint32_t most = counted ? constraints.max_properties : kUnbounded;
    if (most < required || least > constraints.max_properties) return rules_.Never();
    if (least > listed.size() + 1 && !extras.empty())
      return Error::Unsupported(
          "schema: '", Printable(PointerTo(constraints.pointer, "minProperties")),
          "' is not supported above the listed properties and one: names that are not listed may come twice");
    if (least > kMaxListedProperties || (counted && most > kMaxListedProperties))
      return Error::Unsupported("schema: '", Printable(constraints.pointer),
                                "': minProperties and maxProperties are supported up to ",
                                kMaxListedProperties);

    // Places are (stage, count): the stage is the next listed property, then the unlisted ones, then the
    // unlisted ones after the first. The count is exact up to `top`, where it stays. Unlisted names may be
    // equal to each other, so that all of them count as one towards `least`: `distinct` is what they count
    // from.
    const uint32_t top = counted ? std::max(most, 1u) : std::max(least, 1u);
    const auto stages = static_cast<uint32_t>(listed.size());
    const ExprId comma = text_.Comma(), close = text_.Close('}');
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> nodes;
    std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> order;
    const auto node = [&](uint32_t stage, uint32_t count, uint32_t distinct) {
      const auto [at, is_new] =
          nodes.emplace(std::tuple(stage, count, distinct), static_cast<uint32_t>(order.size() + 1));
      if (is_new) order.emplace_back(stage, count, distinct);
      return at->second;
    };
    std::vector<GraphEdge> edges;
    std::vector<uint32_t> closing;
    edges.push_back({0, node(0, 0, 0), text_.Open('{')});
    std::vector<ExprId> after_comma;
    for (const Listed& property : listed) after_comma.push_back(rules_.Sequence({comma, property.member}));
    std::vector<ExprId> extras_after_comma;
    for (const ExprId extra : extras) extras_after_comma.push_back(rules_.Sequence({comma, extra}));
    for (size_t i = 0; i < order.size(); ++i) {
      if (!budget_.Spend(8 + extras.size())) return budget_.TooManySteps();
      const auto [stage, count, distinct] = order[i];
      const auto from = static_cast<uint32_t>(i + 1);
      const uint32_t next_count = std::min(count + 1, top);
      const bool may_add = !counted || count < most;
      if (stage < stages) {
        if (!listed[stage].required)
          edges.push_back({from, node(stage + 1, count, distinct), rules_.Empty()});
        if (may_add)
          edges.push_back({from, node(stage + 1, next_count, std::min(distinct + 1, top)),
                           count == 0 ? listed[stage].member : after_comma[stage]});
        continue;
      }
      if (distinct >= least) closing.push_back(from);
      if (!may_add) continue;
      const uint32_t next_distinct = stage == stages ? std::min(distinct + 1, top) : distinct;
      for (size_t e = 0; e < extras.size(); ++e)
        edges.push_back({from, node(stages + 1, next_count, next_distinct),
                         count == 0 ? extras[e] : extras_after_comma[e]});
    }
    const auto end = static_cast<uint32_t>(order.size() + 1);
    for (const uint32_t from : closing) edges.push_back({from, end, close});
    return rules_.Graph(end + 1, std::move(edges));
  }

  const Json& document_;
  RuleSet& rules_;
  Budget& budget_;
  SchemaReader reader_;
  JsonText text_;
  std::map<std::vector<std::pair<const Json*, int>>, RuleId> known_;
  std::deque<std::pair<RuleId, Members>> open_;
};

}  // namespace

Result<RuleId> AddJsonSchema(std::string_view schema, const JsonOptions& options, RuleSet& rules,
                             Budget& budget) {
  // Checked first with the project's bounds; then again in the order in which the schema has its names.
  if (auto checked = ParseJson(schema, "schema"); !checked) return Error::Invalid(checked.error().message());
  const Json document = Json::parse(schema.begin(), schema.end(), nullptr, false);
  if (document.is_discarded()) return Error::Invalid("schema: not valid JSON");
  return Compiler(document, options, rules, budget).Run();
}

}  // namespace celer::grammar
