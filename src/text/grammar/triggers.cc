#include "text/grammar/triggers.h"

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <vector>

#include "io/file/printable.h"
#include "text/grammar/json_schema.h"

namespace celer::grammar {
namespace {

// Finds the first trigger in a text: an Aho-Corasick automaton.
struct AhoCorasick {
  static constexpr int kNone = -1;
  struct Node {
    std::array<int, 256> next;
    int trigger = kNone;  // found on arriving here
    int fallback = 0;
  };
  std::vector<Node> nodes;

  explicit AhoCorasick(const std::vector<std::string>& triggers) {
    const auto add = [&] {
      nodes.emplace_back();
      nodes.back().next.fill(kNone);
      return static_cast<int>(nodes.size() - 1);
    };
    add();
    for (size_t i = 0; i < triggers.size(); ++i) {
      int at = 0;
      for (const char c : triggers[i]) {
        const auto byte = static_cast<uint8_t>(c);
        if (nodes[at].next[byte] == kNone) {
          const int made = add();
          nodes[at].next[byte] = made;
        }
        at = nodes[at].next[byte];
      }
      if (nodes[at].trigger == kNone) nodes[at].trigger = static_cast<int>(i);
    }
    std::deque<int> queue;
    for (int& next : nodes[0].next) {
      if (next == kNone)
        next = 0;
      else
        queue.push_back(next);
    }
    for (; !queue.empty(); queue.pop_front()) {
      Node& node = nodes[queue.front()];
      const Node& back = nodes[node.fallback];
      if (node.trigger == kNone) node.trigger = back.trigger;
      for (int byte = 0; byte < 256; ++byte) {
        if (node.next[byte] == kNone) {
          node.next[byte] = back.next[byte];
        } else {
          nodes[node.next[byte]].fallback = back.next[byte];
          queue.push_back(node.next[byte]);
        }
      }
    }
  }
};

}  // namespace

Result<RuleId> AddTriggers(std::span<const TriggeredPart> parts, const TriggerOptions& options,
                           RuleSet& rules, Budget& budget) {
  constexpr size_t kMaxTriggerBytes = 4096;
  if (parts.empty())
    return Error::Invalid("there are no parts that a trigger could begin; give at least one");
  std::vector<std::string> triggers = options.triggers;
  if (triggers.empty())
    for (const TriggeredPart& part : parts) triggers.push_back(part.begin);
  size_t bytes = 0;
  for (const std::string& trigger : triggers) {
    if (trigger.empty()) return Error::Invalid("a trigger is empty; it must be a text that begins a part");
    bytes += trigger.size();
  }
  if (bytes > kMaxTriggerBytes)
    return Error::Invalid("the triggers have ", bytes, " bytes, at most ", kMaxTriggerBytes, " are accepted");

  const RuleId root = rules.AddRule("root");
  std::vector<std::vector<ExprId>> after(triggers.size());  // what may follow each trigger
  std::vector<ExprId> whole;
  for (const TriggeredPart& part : parts) {
    const std::string_view schema =
        part.schema.empty() ? R"({"type": "object"})" : std::string_view(part.schema);
    CELER_ASSIGN(const RuleId body, AddJsonSchema(schema, options.json, rules, budget));
    const ExprId rest = rules.Sequence({rules.Call(body), rules.Literal(part.end)});
    whole.push_back(rules.Sequence({rules.Literal(part.begin), rest}));
    bool triggered = false;
    for (size_t i = 0; i < triggers.size(); ++i)
      if (part.begin.starts_with(triggers[i])) {
        after[i].push_back(rules.Sequence({rules.Literal(part.begin.substr(triggers[i].size())), rest}));
        triggered = true;
      }
    if (!triggered)
      return Error::Invalid("the part that begins with '", Printable(part.begin),
                            "' begins with none of the triggers");
  }
  for (size_t i = 0; i < triggers.size(); ++i)
    if (after[i].empty())
      return Error::Invalid("no part begins with the trigger '", Printable(triggers[i]), "'");

  if (!options.free_text) {
    const ExprId one = rules.Choice(std::move(whole));
    const ExprId more = rules.Repeat(rules.Sequence({rules.Literal(options.between), one}), 0, kUnbounded);
    ExprId body = options.several ? rules.Sequence({one, more}) : one;
    if (!options.at_least_one) body = rules.Optional(body);
    rules.SetBody(root, body);
    return root;
  }

  const AhoCorasick finder(triggers);
  if (!budget.Spend(finder.nodes.size() * 64)) return budget.TooManySteps();
  const auto count = static_cast<uint32_t>(finder.nodes.size());
  const auto trigger_count = static_cast<uint32_t>(triggers.size());
  // The finder's nodes and one for each trigger, twice where it matters whether a part was written; then the
  // end.
  const uint32_t phases = options.at_least_one || !options.several ? 2 : 1;
  const uint32_t phase_size = count + trigger_count, end = phases * phase_size;
  std::vector<GraphEdge> edges;
  for (uint32_t phase = 0; phase < phases; ++phase) {
    const uint32_t base = phase * phase_size;
    if (phase == 1 && !options.several) {
      edges.push_back({base, end, rules.Empty()});
      break;
    }
    for (uint32_t i = 0; i < count; ++i) {
      const AhoCorasick::Node& node = finder.nodes[i];
      if (node.trigger != AhoCorasick::kNone) continue;
      if (phase == 1 || !options.at_least_one) edges.push_back({base + i, end, rules.Empty()});
      for (uint32_t low = 0; low < 256;) {
        uint32_t high = low;
        while (high + 1 < 256 && node.next[high + 1] == node.next[low]) ++high;
        const int to = node.next[low];
        const int trigger = finder.nodes[to].trigger;
        edges.push_back({base + i,
                         base + (trigger == AhoCorasick::kNone ? static_cast<uint32_t>(to)
                                                               : count + static_cast<uint32_t>(trigger)),
                         rules.Byte(static_cast<uint8_t>(low), static_cast<uint8_t>(high))});
        low = high + 1;
      }
    }
    for (uint32_t i = 0; i < trigger_count; ++i)
      edges.push_back({base + count + i, (phases - 1) * phase_size, rules.Choice(after[i])});
  }
  rules.SetBody(root, rules.Graph(end + 1, std::move(edges)));
  return root;
}

}  // namespace celer::grammar
