#include "text/grammar/automaton.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/check.h"
#include "io/file/printable.h"

namespace celer::grammar {
namespace {

constexpr uint32_t kInfinite = ~uint32_t{0} / 4;

// Unproductive rules: they can never end, so that no text matches them.
Result<std::vector<bool>> UnproductiveRules(const std::vector<Dfa>& dfas, Budget& budget) {
  std::vector<bool> dead(dfas.size(), true);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t rule = 0; rule < dfas.size(); ++rule) {
      if (!dead[rule]) continue;
      const auto& states = dfas[rule].states;
      if (!budget.Spend(1 + states.size() / 8)) return budget.TooManySteps();
      if (states.empty()) continue;
      std::vector<bool> reached(states.size(), false);
      std::vector<uint32_t> work{0};
      reached[0] = true;
      const auto visit = [&](uint32_t to) {
        if (reached[to]) return;
        reached[to] = true;
        work.push_back(to);
      };
      while (!work.empty() && dead[rule]) {
        const DfaState& state = states[work.back()];
        work.pop_back();
        if (state.accept) dead[rule] = false;
        for (const DfaEdge& edge : state.edges) visit(edge.to);
        for (const DfaCall& call : state.calls)
          if (!dead[call.rule]) visit(call.to);
      }
      changed |= !dead[rule];
    }
  }
  return dead;
}

// The rules that each rule may call before it has taken a byte (left recursion is a cycle of these).
std::vector<std::vector<RuleId>> FirstCalls(const std::vector<Dfa>& dfas, const std::vector<bool>& nullable) {
  std::vector<std::vector<RuleId>> out(dfas.size());
  for (size_t rule = 0; rule < dfas.size(); ++rule) {
    const auto& states = dfas[rule].states;
    if (states.empty()) continue;
    std::vector<bool> reached(states.size(), false);
    std::vector<uint32_t> work{0};
    reached[0] = true;
    while (!work.empty()) {
      const DfaState& state = states[work.back()];
      work.pop_back();
      for (const DfaCall& call : state.calls) {
        out[rule].push_back(call.rule);
        if (nullable[call.rule] && !reached[call.to]) {
          reached[call.to] = true;
          work.push_back(call.to);
        }
      }
    }
    std::sort(out[rule].begin(), out[rule].end());
    out[rule].erase(std::unique(out[rule].begin(), out[rule].end()), out[rule].end());
  }
  return out;
}

Status RefuseLeftRecursion(const RuleSet& rules, const std::vector<Dfa>& dfas,
                           const std::vector<bool>& nullable) {
  const auto first = FirstCalls(dfas, nullable);
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> mark(dfas.size(), kNew);
  std::vector<std::pair<RuleId, size_t>> path;  // a rule, and which of its first calls comes next
  for (RuleId root = 0; root < dfas.size(); ++root) {
    if (mark[root] != kNew) continue;
    path = {{root, 0}};
    mark[root] = kOpen;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == first[rule].size()) {
        mark[rule] = kDone;
        path.pop_back();
        continue;
      }
      const RuleId called = first[rule][next++];
      if (mark[called] == kDone) continue;
      if (mark[called] == kOpen) {
        std::string loop;
        auto at =
            std::find_if(path.begin(), path.end(), [&](const auto& step) { return step.first == called; });
        for (; at != path.end(); ++at) loop += Printable(rules.name(at->first)) + " -> ";
        return Error::Unsupported(
            "rule '", Printable(rules.name(called)), "' calls itself before it takes a byte (", loop,
            Printable(rules.name(called)), "): write the left recursion as a repetition");
      }
      mark[called] = kOpen;
      path.emplace_back(called, 0);
    }
  }
  return {};
}

}  // namespace

Result<Automaton> Automaton::Make(const RuleSet& rules, RuleId root, uint32_t max_depth, Budget& budget) {
  CELER_ASSIGN(const std::vector<bool> nullable, NullableRules(rules, budget));
  std::vector<Dfa> dfas(rules.rule_count());
  uint64_t total = 0;
  for (RuleId rule = 0; rule < rules.rule_count(); ++rule) {
    CELER_ASSIGN(dfas[rule], MakeDfa(rules, rules.body(rule), nullable, budget));
    total += dfas[rule].states.size();
    if (total > budget.max_states()) return budget.TooManyStates();
  }
  CELER_ASSIGN(const std::vector<bool> dead, UnproductiveRules(dfas, budget));
  if (dead[root])
    return Error::Invalid("no text matches the grammar: its parts contradict each other or never end");
  for (RuleId rule = 0; rule < dfas.size(); ++rule) {
    if (dead[rule])
      dfas[rule].states.clear();
    else
      Trim(dfas[rule], dead);
  }
  CELER_RETURN_IF_ERROR(RefuseLeftRecursion(rules, dfas, nullable));

  Automaton out;
  out.max_depth_ = max_depth;
  std::vector<uint32_t> offset(dfas.size());
  uint32_t count = 0;
  std::array<bool, 257> cut = {};
  for (size_t rule = 0; rule < dfas.size(); ++rule) {
    offset[rule] = count;
    if (!dfas[rule].states.empty()) out.rules_.emplace_back(count, rules.name(static_cast<RuleId>(rule)));
    count += static_cast<uint32_t>(dfas[rule].states.size());
    for (const DfaState& state : dfas[rule].states)
      for (const DfaEdge& edge : state.edges) cut[edge.low] = cut[edge.high + 1u] = true;
  }
  uint8_t last = 0;
  for (int byte = 1; byte < 256; ++byte) {
    if (cut[byte]) ++last;
    out.class_of_[byte] = last;
  }
  out.classes_ = last + size_t{1};
  out.start_ = offset[root];
  out.states_.resize(count);
  out.repeats_.resize(count);

  std::map<std::vector<int32_t>, uint32_t> rows;
  std::vector<int32_t> row(out.classes_);
  for (size_t rule = 0; rule < dfas.size(); ++rule)
    for (uint32_t i = 0; i < dfas[rule].states.size(); ++i) {
      const DfaState& from = dfas[rule].states[i];
      State& state = out.states_[offset[rule] + i];
      std::fill(row.begin(), row.end(), kNoStep);
      for (const DfaEdge& edge : from.edges)
        for (size_t c = out.class_of_[edge.low]; c <= out.class_of_[edge.high]; ++c)
          row[c] = static_cast<int32_t>(edge.to) - static_cast<int32_t>(i);
      const auto [at, is_new] = rows.emplace(row, static_cast<uint32_t>(rows.size()));
      if (is_new) {
        out.rows_.insert(out.rows_.end(), row.begin(), row.end());
        if (out.rows_.size() > uint64_t{64} * budget.max_states()) return budget.TooManyStates();
      }
      if (!budget.Spend(4)) return budget.TooManySteps();
      state.row = at->second;
      state.first_call = static_cast<uint32_t>(out.calls_.size());
      if (from.calls.size() > UINT16_MAX)
        return Error::Unsupported("rule '", Printable(rules.name(static_cast<RuleId>(rule))),
                                  "' has more than ", UINT16_MAX, " alternatives that are rules");
      state.call_count = static_cast<uint16_t>(from.calls.size());
      for (const DfaCall& call : from.calls) {
        const DfaState& to = dfas[rule].states[call.to];
        const bool last_of_rule = to.accept && to.edges.empty() && to.calls.empty();
        out.calls_.push_back({offset[call.rule], last_of_rule ? kDead : offset[rule] + call.to});
      }
      state.accept = from.accept;
      state.plain = !from.accept && from.calls.empty();
      state.takes_bytes = !from.edges.empty();
      state.mask_class = offset[rule] + from.mask_class;
      out.repeats_[offset[rule] + i] = {from.chain, from.copies_used, from.copies, offset[rule] + from.base,
                                        from.mixed};
    }
  CELER_RETURN_IF_ERROR(out.FindNeeds(dfas, offset, rules, root, budget));
  return out;
}

// Least fixed points: an accepting state needs no frames and no bytes; any other the minimum over its edges.
// A call that pushes a frame needs one more than the called rule does.
Status Automaton::FindNeeds(const std::vector<Dfa>& dfas, const std::vector<uint32_t>& offset,
                            const RuleSet& rules, RuleId root, Budget& budget) {
  for (State& state : states_) state.need = state.distance = state.accept ? 0 : kInfinite;
  std::vector<std::vector<RuleId>> callers(dfas.size());
  for (RuleId rule = 0; rule < dfas.size(); ++rule)
    for (const DfaState& state : dfas[rule].states)
      for (const DfaCall& call : state.calls)
        if (callers[call.rule].empty() || callers[call.rule].back() != rule)
          callers[call.rule].push_back(rule);
  std::vector<RuleId> work(dfas.size());
  std::vector<bool> queued(dfas.size(), true);
  for (RuleId rule = 0; rule < dfas.size(); ++rule) work[rule] = static_cast<RuleId>(dfas.size() - 1 - rule);
  while (!work.empty()) {
    const RuleId rule = work.back();
    work.pop_back();
    queued[rule] = false;
    const auto& states = dfas[rule].states;
    if (states.empty()) continue;
    const State before = states_[offset[rule]];
    // Backwards: later states usually come later in the text, so that one pass settles most of them.
    for (bool changed = true; changed;) {
      changed = false;
      uint64_t edges = 0;
      for (size_t i = states.size(); i-- > 0;) {
        edges += states[i].edges.size() + states[i].calls.size();
        State& state = states_[offset[rule] + i];
        uint32_t need = state.need, distance = state.distance;
        for (const DfaEdge& edge : states[i].edges) {
          const State& to = states_[offset[rule] + edge.to];
          need = std::min(need, to.need);
          distance = std::min(distance, to.distance + 1);
        }
        for (size_t c = 0; c < states[i].calls.size(); ++c) {
          const State& to = states_[offset[rule] + states[i].calls[c].to];
          const State& callee = states_[offset[states[i].calls[c].rule]];
          const bool framed = calls_[state.first_call + c].to != kDead;
          need = std::min(need, std::max(to.need, callee.need + (framed ? 1 : 0)));
          distance = std::min(distance, std::min(kInfinite, to.distance + callee.distance));
        }
        if (need < state.need || distance < state.distance) {
          state.need = need;
          state.distance = distance;
          changed = true;
        }
      }
      if (!budget.Spend(states.size() + edges / 8)) return budget.TooManySteps();
    }
    const State& after = states_[offset[rule]];
    if (after.need == before.need && after.distance == before.distance) continue;
    for (const RuleId caller : callers[rule])
      if (!queued[caller]) {
        queued[caller] = true;
        work.push_back(caller);
      }
  }
  if (states_[offset[root]].need > max_depth_)
    return Error::Unsupported("rule '", Printable(rules.name(root)), "' nests ", states_[offset[root]].need,
                              " rules deep at least, at most ", max_depth_, " are supported");
  return {};
}

const std::string& Automaton::RuleOf(uint32_t state) const {
  const auto next = std::upper_bound(rules_.begin(), rules_.end(), state,
                                     [](uint32_t s, const auto& rule) { return s < rule.first; });
  return std::prev(next)->second;
}

size_t Automaton::bytes() const {
  return states_.size() * (sizeof(State) + sizeof(Repeat)) + calls_.size() * sizeof(Call) +
         rows_.size() * sizeof(int32_t);
}

}  // namespace celer::grammar
