#include "text/grammar/dfa.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace celer::grammar {
namespace {

constexpr uint32_t kNone = ~uint32_t{0};

struct VectorHash {
  size_t operator()(const std::vector<uint32_t>& v) const {
    uint64_t hash = v.size();
    for (const uint32_t x : v) hash = (hash ^ x) * 0x9E3779B97F4A7C15u + (hash >> 29);
    return hash;
  }
};

struct NfaEdge {
  enum class Kind : uint8_t { kByte, kEpsilon, kAtBegin, kAtEnd, kCall };
  Kind kind;
  uint8_t low, high;
  RuleId rule;
  uint32_t to;
  uint32_t next;  // the next edge of the same state
};

// Thompson's construction between states that the caller gives. No fragment adds an edge into its first
// state or out of its last one, so fragments may share them.
class Nfa {
 public:
  Nfa(const RuleSet& rules, const std::vector<bool>& nullable, Budget& budget)
      : rules_(rules), nullable_(nullable), longest_(budget.longest_token()), budget_(budget) {}

  Status Build(ExprId expr) {
    start_ = NewState();
    final_ = NewState();
    Add(expr, start_, final_, 0);
    if (failed_) return *failed_;
    return {};
  }

  uint32_t start() const { return start_; }
  uint32_t final() const { return final_; }
  uint32_t first_edge(uint32_t state) const { return first_[state]; }
  const NfaEdge& edge(uint32_t index) const { return edges_[index]; }
  size_t size() const { return first_.size(); }
  // Where a state is in the innermost bounded repetition around it.
  struct Place {
    uint32_t chain = kNoChain;
    uint32_t used = 0;   // copies that are begun
    bool mixed = false;  // inside a repetition and outside of it at the same time
    bool operator==(const Place&) const = default;
  };
  const Place& place(uint32_t state) const { return places_[state]; }
  uint32_t copies(uint32_t chain) const { return chain_copies_[chain]; }
  bool IsLastPlace(uint32_t state) const {
    const Place& at = places_[state];
    return at.chain != kNoChain && at.used == chain_copies_[at.chain];
  }
  // The same state at the first position from which the repetition may be left.
  uint32_t Shifted(uint32_t state) const { return shifted_[state]; }
  // The state of the same mask class that represents it.
  uint32_t Representative(uint32_t state) const {
    while (alias_[state] != state) state = alias_[state];
    return state;
  }

 private:
  // Deeper than any parser allows an expression to be nested.
  static constexpr int kMaxDepth = 2000;

  uint32_t NewState() {
    if (first_.size() >= uint64_t{4} * budget_.max_states()) Fail(budget_.TooManyStates());
    first_.push_back(kNone);
    alias_.push_back(static_cast<uint32_t>(alias_.size()));
    shifted_.push_back(static_cast<uint32_t>(shifted_.size()));
    places_.emplace_back();
    return static_cast<uint32_t>(first_.size() - 1);
  }

  void Fail(Error error) {
    if (!failed_) failed_ = std::move(error);
  }

  void Connect(uint32_t from, uint32_t to, NfaEdge::Kind kind, uint8_t low = 0, uint8_t high = 0,
               RuleId rule = 0) {
    edges_.push_back({kind, low, high, rule, to, first_[from]});
    first_[from] = static_cast<uint32_t>(edges_.size() - 1);
  }
  void Epsilon(uint32_t from, uint32_t to) { Connect(from, to, NfaEdge::Kind::kEpsilon); }

  void Add(ExprId id, uint32_t from, uint32_t to, int depth) {
    if (failed_) return;
    if (!budget_.Spend(1)) return Fail(budget_.TooManySteps());
    if (depth > kMaxDepth) return Fail(Error::Unsupported("the grammar is nested too deeply"));
    const Expr& expr = rules_[id];
    switch (expr.kind) {
      case Expr::Kind::kEmpty:
        return Epsilon(from, to);
      case Expr::Kind::kNever:
        return;
      case Expr::Kind::kByte:
        return Connect(from, to, NfaEdge::Kind::kByte, expr.low, expr.high);
      case Expr::Kind::kLiteral:
        for (size_t i = 0; i < expr.bytes.size() && !failed_; ++i) {
          const uint32_t next = i + 1 == expr.bytes.size() ? to : NewState();
          const auto byte = static_cast<uint8_t>(expr.bytes[i]);
          Connect(from, next, NfaEdge::Kind::kByte, byte, byte);
          from = next;
        }
        return;
      case Expr::Kind::kSequence:
        for (size_t i = 0; i < expr.parts.size() && !failed_; ++i) {
          const uint32_t next = i + 1 == expr.parts.size() ? to : NewState();
          Add(expr.parts[i], from, next, depth + 1);
          from = next;
        }
        return;
      case Expr::Kind::kChoice:
        for (const ExprId part : expr.parts) Add(part, from, to, depth + 1);
        return;
      case Expr::Kind::kRepeat:
        return AddRepeat(expr, from, to, depth);
      case Expr::Kind::kCall:
        return Connect(from, to, NfaEdge::Kind::kCall, 0, 0, expr.rule);
      case Expr::Kind::kGraph: {
        std::vector<uint32_t> nodes(expr.max + size_t{1});
        for (uint32_t& node : nodes) node = NewState();
        Epsilon(from, nodes.front());
        Epsilon(nodes.back(), to);
        for (const GraphEdge& edge : expr.edges) Add(edge.expr, nodes[edge.from], nodes[edge.to], depth + 1);
        return;
      }
      case Expr::Kind::kDfa: {
        if (!budget_.Spend(expr.dfa->states.size())) return Fail(budget_.TooManySteps());
        std::vector<uint32_t> nodes(expr.dfa->states.size());
        for (uint32_t& node : nodes) node = NewState();
        if (failed_) return;
        Epsilon(from, nodes[0]);
        std::unordered_map<uint32_t, uint32_t> first_of_class, new_chain;
        for (size_t i = 0; i < nodes.size(); ++i) {
          const DfaState& state = expr.dfa->states[i];
          if (state.chain != kNoChain) {
            const auto [at, is_new] =
                new_chain.emplace(state.chain, static_cast<uint32_t>(chain_copies_.size()));
            if (is_new) chain_copies_.push_back(state.copies);
            places_[nodes[i]] = {at->second, state.copies_used, false};
            shifted_[nodes[i]] = nodes[state.base];
          }
          places_[nodes[i]].mixed = state.mixed;
          for (const DfaEdge& edge : state.edges)
            Connect(nodes[i], nodes[edge.to], NfaEdge::Kind::kByte, edge.low, edge.high);
          for (const DfaCall& call : state.calls)
            Connect(nodes[i], nodes[call.to], NfaEdge::Kind::kCall, 0, 0, call.rule);
          if (state.accept) Epsilon(nodes[i], to);
          alias_[nodes[i]] = first_of_class.emplace(state.mask_class, nodes[i]).first->second;
        }
        return;
      }
      case Expr::Kind::kAtBegin:
        return Connect(from, to, NfaEdge::Kind::kAtBegin);
      case Expr::Kind::kAtEnd:
        return Connect(from, to, NfaEdge::Kind::kAtEnd);
    }
  }

  void AddRepeat(const Expr& expr, uint32_t from, uint32_t to, int depth) {
    const ExprId part = expr.parts[0];
    const bool bounded = expr.max != kUnbounded;
    const uint32_t copies = bounded ? expr.max : expr.min;
    // A part that matches the empty text could pass several positions without a byte.
    const bool may_alias = !Nullable(part);
    uint32_t place = NewState();
    Epsilon(from, place);
    // The copies that stand for others: those too far from the first exit for a token to reach it, and those
    // that may be left at once and are too far from the last copy.
    struct Standing {
      uint32_t place = kNone, inner = 0;
    } before, within, first_leaving;
    uint32_t chain = kNoChain;
    if (may_alias && bounded && copies > 1) {
      chain = static_cast<uint32_t>(chain_copies_.size());
      chain_copies_.push_back(copies);
    }
    for (uint32_t i = 0; i < copies && !failed_; ++i) {
      if (!budget_.Spend(1)) return Fail(budget_.TooManySteps());
      if (i >= expr.min) Epsilon(place, to);
      const uint32_t block = place;
      // All states of this copy lie between here and the next place, in the same order in every copy.
      const uint32_t inner = static_cast<uint32_t>(first_.size());
      const uint32_t next = NewState();
      Add(part, place, next, depth + 1);
      // Copies are counted for the innermost repetition only: inside another one, "left" would mean two
      // things.
      if (i == 0 && std::any_of(places_.begin() + inner, places_.end(),
                                [](const Place& p) { return p.chain != kNoChain || p.mixed; }))
        chain = kNoChain;
      if (chain != kNoChain) {
        const auto put = [&](uint32_t state, uint32_t used, uint32_t first) {
          places_[state] = {chain, used, false};
          if (i > expr.min) shifted_[state] = first;
        };
        if (i == expr.min) first_leaving = {block, inner};
        put(block, i, first_leaving.place);
        for (uint32_t s = inner + 1; s < first_.size(); ++s) put(s, i + 1, first_leaving.inner + (s - inner));
      }
      if (may_alias && bounded && uint64_t{i} + longest_ + 1 < copies) {
        Standing* stands = uint64_t{i} + longest_ + 1 < expr.min ? &before
                           : i >= expr.min                       ? &within
                                                                 : nullptr;
        if (stands && stands->place == kNone) {
          *stands = {block, inner};
        } else if (stands) {
          alias_[block] = stands->place;
          // The first state after `inner` is the next place; it gets its alias in the next round.
          for (uint32_t s = inner + 1; s < first_.size(); ++s)
            if (alias_[s] == s) alias_[s] = stands->inner + (s - inner);
        }
      }
      place = next;
    }
    if (!bounded) {
      const uint32_t loop = NewState();
      Epsilon(place, loop);
      const uint32_t back = NewState();
      Add(part, loop, back, depth + 1);
      Epsilon(back, loop);
      Epsilon(loop, to);
    } else {
      Epsilon(place, to);
      if (chain != kNoChain && places_[place].chain == kNoChain) places_[place] = {chain, copies, false};
    }
  }

  bool Nullable(ExprId id) const {
    const Expr& expr = rules_[id];
    switch (expr.kind) {
      case Expr::Kind::kByte:
      case Expr::Kind::kLiteral:
      case Expr::Kind::kNever:
        return false;
      case Expr::Kind::kSequence:
        return std::all_of(expr.parts.begin(), expr.parts.end(), [&](ExprId part) { return Nullable(part); });
      case Expr::Kind::kChoice:
        return std::any_of(expr.parts.begin(), expr.parts.end(), [&](ExprId part) { return Nullable(part); });
      case Expr::Kind::kRepeat:
        return expr.min == 0 || Nullable(expr.parts[0]);
      case Expr::Kind::kCall:
        return expr.rule >= nullable_.size() || nullable_[expr.rule];
      case Expr::Kind::kDfa:
        return expr.dfa->states[0].accept;
      default:
        return true;  // not known to take a byte
    }
  }

  const RuleSet& rules_;
  const std::vector<bool>& nullable_;
  size_t longest_;
  Budget& budget_;
  std::vector<uint32_t> first_;  // by state
  std::vector<uint32_t> alias_;
  std::vector<uint32_t> shifted_;
  std::vector<Place> places_;
  std::vector<uint32_t> chain_copies_;
  std::vector<NfaEdge> edges_;
  uint32_t start_ = 0, final_ = 0;
  std::optional<Error> failed_;
};

// Subset construction: sets of NFA states become DFA states.
class SubsetConstruction {
 public:
  SubsetConstruction(const Nfa& nfa, Budget& budget) : nfa_(nfa), budget_(budget), mark_(nfa.size(), 0) {}

  Result<Dfa> Run() {
    std::vector<uint32_t> start{nfa_.start()};
    Close(start, true, false);
    Intern(std::move(start), {}, true);
    for (uint32_t i = 0; i < sets_.size(); ++i) {
      if (sets_.size() > budget_.max_states()) return budget_.TooManyStates();
      CELER_RETURN_IF_ERROR(Expand(i));
      std::vector<uint32_t>().swap(sets_[i]);
    }
    return std::move(dfa_);
  }

 private:
  // The epsilon closure, reduced to the states that matter: sorted.
  void Close(std::vector<uint32_t>& set, bool at_begin, bool at_end) {
    ++round_;
    std::vector<uint32_t> out;
    for (const uint32_t state : set) mark_[state] = round_;
    std::vector<uint32_t> work = std::move(set);
    while (!work.empty()) {
      const uint32_t state = work.back();
      work.pop_back();
      // The end of a repetition is told apart from what comes after it, so that the last copy is counted.
      bool matters = state == nfa_.final() || nfa_.IsLastPlace(state);
      for (uint32_t i = nfa_.first_edge(state); i != kNone; i = nfa_.edge(i).next) {
        const NfaEdge& edge = nfa_.edge(i);
        ++steps_;
        const bool free = edge.kind == NfaEdge::Kind::kEpsilon ||
                          (edge.kind == NfaEdge::Kind::kAtBegin && at_begin) ||
                          (edge.kind == NfaEdge::Kind::kAtEnd && at_end);
        if (free && mark_[edge.to] != round_) {
          mark_[edge.to] = round_;
          work.push_back(edge.to);
        }
        matters |= edge.kind != NfaEdge::Kind::kEpsilon && edge.kind != NfaEdge::Kind::kAtBegin;
      }
      if (matters) out.push_back(state);
    }
    std::sort(out.begin(), out.end());
    set = std::move(out);
  }

  // Where states are together: one place, none, or (mixed) several.
  struct Where {
    Nfa::Place place = {};
    bool mixed = false;
  };
  Where WhereIs(const std::vector<uint32_t>& states) const {
    const Nfa::Place first = nfa_.place(states[0]);
    for (const uint32_t state : states)
      if (nfa_.place(state).mixed || nfa_.place(state) != first) return {{}, true};
    return {first, false};
  }

  // `where` the states are from which the set was closed.
  uint32_t Intern(std::vector<uint32_t> set, const Where& where, bool is_start = false) {
    // The start is a state of its own: only there an assertion of the beginning holds.
    if (!is_start)
      if (const auto at = index_.find(set); at != index_.end()) return at->second;
    const auto id = static_cast<uint32_t>(sets_.size());
    DfaState state;
    std::vector<uint32_t> at_end = set;
    Close(at_end, is_start, true);
    state.accept = std::binary_search(at_end.begin(), at_end.end(), nfa_.final());
    std::vector<uint32_t> canonical = set;
    for (uint32_t& s : canonical) s = nfa_.Representative(s);
    std::sort(canonical.begin(), canonical.end());
    canonical.erase(std::unique(canonical.begin(), canonical.end()), canonical.end());
    if (is_start) canonical.push_back(kNone);
    state.mask_class = classes_.emplace(std::move(canonical), id).first->second;
    state.base = id;
    state.mixed = where.mixed;
    if (where.place.chain != kNoChain) {
      std::vector<uint32_t> shifted = set;
      for (uint32_t& s : shifted)
        if (nfa_.place(s).chain == where.place.chain) s = nfa_.Shifted(s);
      std::sort(shifted.begin(), shifted.end());
      shifted.push_back(where.place.chain);
      state.chain = where.place.chain;
      state.copies_used = where.place.used;
      state.copies = nfa_.copies(where.place.chain);
      state.base = bases_.emplace(std::move(shifted), id).first->second;
    }
    dfa_.states.push_back(std::move(state));
    if (!is_start) index_.emplace(set, id);
    sets_.push_back(std::move(set));
    return id;
  }

  Status Expand(uint32_t from) {
    std::vector<NfaEdge> bytes;
    std::vector<std::pair<RuleId, uint32_t>> calls;
    for (const uint32_t state : sets_[from])
      for (uint32_t i = nfa_.first_edge(state); i != kNone; i = nfa_.edge(i).next) {
        const NfaEdge& edge = nfa_.edge(i);
        if (edge.kind == NfaEdge::Kind::kByte) bytes.push_back(edge);
        if (edge.kind == NfaEdge::Kind::kCall) calls.emplace_back(edge.rule, edge.to);
      }
    std::sort(calls.begin(), calls.end());
    for (size_t i = 0; i < calls.size();) {
      std::vector<uint32_t> set;
      const RuleId rule = calls[i].first;
      for (; i < calls.size() && calls[i].first == rule; ++i) set.push_back(calls[i].second);
      set.erase(std::unique(set.begin(), set.end()), set.end());
      const Where where = WhereIs(set);
      Close(set, false, false);
      const uint32_t to = Intern(std::move(set), where);
      dfa_.states[from].calls.push_back({rule, to});
    }
    // Between two cuts all bytes go to the same places.
    std::vector<uint32_t> cuts;
    for (const NfaEdge& edge : bytes) {
      cuts.push_back(edge.low);
      cuts.push_back(edge.high + 1u);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      std::vector<uint32_t> set;
      for (const NfaEdge& edge : bytes)
        if (edge.low <= cuts[c] && cuts[c] <= edge.high) set.push_back(edge.to);
      steps_ += bytes.size();
      // One state may have as many edges as the grammar has bytes.
      if (!budget_.Spend(std::exchange(steps_, 0))) return budget_.TooManySteps();
      if (set.empty()) continue;
      std::sort(set.begin(), set.end());
      set.erase(std::unique(set.begin(), set.end()), set.end());
      const Where where = WhereIs(set);
      Close(set, false, false);
      const uint32_t to = Intern(std::move(set), where);
      auto& edges = dfa_.states[from].edges;
      const auto low = static_cast<uint8_t>(cuts[c]), high = static_cast<uint8_t>(cuts[c + 1] - 1);
      if (!edges.empty() && edges.back().to == to && edges.back().high + 1 == low)
        edges.back().high = high;
      else
        edges.push_back({low, high, to});
    }
    if (!budget_.Spend(steps_)) return budget_.TooManySteps();
    steps_ = 0;
    return {};
  }

  const Nfa& nfa_;
  Budget& budget_;
  std::vector<uint32_t> mark_;
  uint32_t round_ = 0;
  uint64_t steps_ = 0;
  Dfa dfa_;
  std::vector<std::vector<uint32_t>> sets_;
  std::unordered_map<std::vector<uint32_t>, uint32_t, VectorHash> index_, classes_, bases_;
};

}  // namespace

bool Dfa::Accepts(std::string_view text) const {
  if (states.empty()) return false;
  uint32_t state = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const auto& edges = states[state].edges;
    const auto at = std::find_if(edges.begin(), edges.end(), [byte](const DfaEdge& edge) {
      return edge.low <= byte && byte <= edge.high;
    });
    if (at == edges.end()) return false;
    state = at->to;
  }
  return states[state].accept;
}

Result<std::vector<bool>> NullableRules(const RuleSet& rules, Budget& budget) {
  std::vector<bool> rule_nullable(rules.rule_count(), false), nullable(rules.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    if (!budget.Spend(rules.size() / 8)) return budget.TooManySteps();
    // Parts of an expression come before it, so one pass settles all but calls.
    for (ExprId id = 0; id < rules.size(); ++id) {
      if (nullable[id]) continue;
      const Expr& expr = rules[id];
      const auto is = [&](ExprId part) { return nullable[part]; };
      bool value = false;
      switch (expr.kind) {
        case Expr::Kind::kEmpty:
        case Expr::Kind::kAtBegin:
        case Expr::Kind::kAtEnd:
          value = true;
          break;
        case Expr::Kind::kSequence:
          value = std::all_of(expr.parts.begin(), expr.parts.end(), is);
          break;
        case Expr::Kind::kChoice:
          value = std::any_of(expr.parts.begin(), expr.parts.end(), is);
          break;
        case Expr::Kind::kRepeat:
          value = expr.min == 0 || is(expr.parts[0]);
          break;
        case Expr::Kind::kCall:
          value = rule_nullable[expr.rule];
          break;
        case Expr::Kind::kDfa:
          value = expr.dfa->states[0].accept;
          break;
        case Expr::Kind::kGraph: {
          std::vector<bool> reached(expr.max + size_t{1}, false);
          reached[0] = true;
          for (bool more = true; more;) {
            more = false;
            for (const GraphEdge& edge : expr.edges)
              if (reached[edge.from] && !reached[edge.to] && nullable[edge.expr])
                more = reached[edge.to] = true;
          }
          value = reached.back();
          break;
        }
        default:
          break;
      }
      if (value) changed = nullable[id] = true;
    }
    for (RuleId rule = 0; rule < rules.rule_count(); ++rule)
      if (!rule_nullable[rule] && nullable[rules.body(rule)]) changed = rule_nullable[rule] = true;
  }
  return rule_nullable;
}

Result<Dfa> MakeDfa(const RuleSet& rules, ExprId expr, const std::vector<bool>& nullable, Budget& budget) {
  Nfa nfa(rules, nullable, budget);
  CELER_RETURN_IF_ERROR(nfa.Build(expr));
  CELER_ASSIGN(Dfa dfa, SubsetConstruction(nfa, budget).Run());
  Trim(dfa, {});
  return dfa;
}

Result<Dfa> MakeDfa(const RuleSet& rules, ExprId expr, Budget& budget) {
  return MakeDfa(rules, expr, {}, budget);
}

Result<Dfa> CombineDfas(const Dfa& a, const Dfa& b, Combine how, Budget& budget) {
  Dfa out;
  if (a.states.empty() || (b.states.empty() && how == Combine::kAnd)) return out;
  std::unordered_map<uint64_t, uint32_t> index;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto intern = [&](uint32_t x, uint32_t y) {
    const auto [at, is_new] = index.emplace(uint64_t{x} << 32 | y, static_cast<uint32_t>(pairs.size()));
    if (is_new) {
      pairs.emplace_back(x, y);
      const bool in_b = y != kNone && b.states[y].accept;
      DfaState state;
      state.accept = a.states[x].accept && (how == Combine::kAnd ? in_b : !in_b);
      state.mask_class = at->second;
      out.states.push_back(std::move(state));
    }
    return at->second;
  };
  intern(0, b.states.empty() ? kNone : 0);
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    if (pairs.size() > budget.max_states()) return budget.TooManyStates();
    const auto [x, y] = pairs[i];
    const uint64_t compared = a.states[x].edges.size() * (y == kNone ? 0 : b.states[y].edges.size());
    if (!budget.Spend(16 + compared / 16)) return budget.TooManySteps();
    for (const DfaEdge& edge : a.states[x].edges) {
      uint32_t low = edge.low;
      const auto add = [&](uint32_t high, uint32_t other) {
        if (other == kNone && how == Combine::kAnd) return;
        const uint32_t to = intern(edge.to, other);
        out.states[i].edges.push_back({static_cast<uint8_t>(low), static_cast<uint8_t>(high), to});
      };
      if (y != kNone)
        for (const DfaEdge& with : b.states[y].edges) {
          if (with.low > edge.high) break;
          if (with.high < low) continue;
          if (with.low > low) {
            add(with.low - 1u, kNone);
            low = with.low;
          }
          const uint32_t high = std::min(with.high, edge.high);
          add(high, with.to);
          low = high + 1;
          if (low > edge.high) break;
        }
      if (low <= edge.high) add(edge.high, kNone);
    }
  }
  Trim(out, {});
  return out;
}

void Trim(Dfa& dfa, const std::vector<bool>& dead_rule) {
  const size_t count = dfa.states.size();
  if (count == 0) return;
  const auto dead = [&](RuleId rule) { return rule < dead_rule.size() && dead_rule[rule]; };
  std::vector<std::vector<uint32_t>> from(count);
  std::vector<bool> alive(count, false);
  std::vector<uint32_t> work;
  for (uint32_t i = 0; i < count; ++i) {
    for (const DfaEdge& edge : dfa.states[i].edges) from[edge.to].push_back(i);
    for (const DfaCall& call : dfa.states[i].calls)
      if (!dead(call.rule)) from[call.to].push_back(i);
    if (dfa.states[i].accept) {
      alive[i] = true;
      work.push_back(i);
    }
  }
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    for (const uint32_t before : from[state])
      if (!alive[before]) {
        alive[before] = true;
        work.push_back(before);
      }
  }
  if (!alive[0]) {
    dfa.states.clear();
    return;
  }
  // Reached, in order of first visit, which keeps the start at 0.
  std::vector<uint32_t> name(count, kNone), order{0};
  name[0] = 0;
  const auto visit = [&](uint32_t to) {
    if (!alive[to] || name[to] != kNone) return;
    name[to] = static_cast<uint32_t>(order.size());
    order.push_back(to);
  };
  for (size_t i = 0; i < order.size(); ++i) {
    for (const DfaEdge& edge : dfa.states[order[i]].edges) visit(edge.to);
    for (const DfaCall& call : dfa.states[order[i]].calls)
      if (!dead(call.rule)) visit(call.to);
  }
  std::vector<DfaState> kept(order.size());
  std::unordered_map<uint32_t, uint32_t> class_name;
  for (size_t i = 0; i < order.size(); ++i) {
    DfaState& state = kept[i];
    state = std::move(dfa.states[order[i]]);
    std::erase_if(state.edges, [&](const DfaEdge& edge) { return name[edge.to] == kNone; });
    std::erase_if(state.calls,
                  [&](const DfaCall& call) { return dead(call.rule) || name[call.to] == kNone; });
    for (DfaEdge& edge : state.edges) edge.to = name[edge.to];
    for (DfaCall& call : state.calls) call.to = name[call.to];
    state.mask_class = class_name.emplace(state.mask_class, static_cast<uint32_t>(i)).first->second;
    if (name[state.base] == kNone) state.chain = kNoChain;
    state.base = state.chain == kNoChain ? static_cast<uint32_t>(i) : name[state.base];
  }
  dfa.states = std::move(kept);
}

}  // namespace celer::grammar
