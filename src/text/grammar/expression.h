// The intermediate form of every front end (JSON schema, regular expression, GBNF): rules whose bodies are
// expressions over bytes and other rules.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace celer::grammar {

struct Dfa;

using ExprId = uint32_t;
using RuleId = uint32_t;

inline constexpr uint32_t kUnbounded = ~uint32_t{0};

// Sorted, disjoint ranges of code points.
class CodePointSet {
 public:
  void Add(char32_t low, char32_t high);
  void Add(const CodePointSet& other);
  CodePointSet Complement() const;  // within the code points that UTF-8 can write
  CodePointSet Minus(const CodePointSet& other) const;
  bool Contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<std::pair<char32_t, char32_t>>& ranges() const { return ranges_; }
  static CodePointSet All();
  static CodePointSet Of(std::initializer_list<std::pair<char32_t, char32_t>> ranges);

 private:
  std::vector<std::pair<char32_t, char32_t>> ranges_;
};

struct GraphEdge {
  uint32_t from, to;  // nodes of the graph
  ExprId expr;
};

struct Expr {
  enum class Kind : uint8_t {
    kEmpty,     // the empty text
    kNever,     // no text at all
    kLiteral,   // these bytes
    kByte,      // one byte of [low, high]
    kSequence,  // all parts, one after the other
    kChoice,    // one of the parts
    kRepeat,    // parts[0], min to max times
    kCall,      // rule
    kGraph,     // a path from node 0 to node `max` whose edges are expressions
    kDfa,       // a text that the automaton accepts
    kAtBegin,   // zero width; only in expressions that become an automaton of their own
    kAtEnd,
  };
  Kind kind = Kind::kEmpty;
  uint8_t low = 0, high = 0;
  uint32_t min = 0, max = 0;
  RuleId rule = 0;
  std::string bytes = {};
  std::vector<ExprId> parts = {};
  std::vector<GraphEdge> edges = {};
  std::shared_ptr<const Dfa> dfa = {};
};

// Bounds of one compilation. Every front end and every construction charges it; the first to find it spent
// says so.
class Budget {
 public:
  Budget(uint64_t steps, uint32_t max_states, size_t longest_token)
      : steps_(steps), max_states_(max_states), longest_token_(longest_token) {}
  bool Spend(uint64_t steps) {
    if (steps > steps_) {
      steps_ = 0;
      return false;
    }
    steps_ -= steps;
    return true;
  }
  uint32_t max_states() const { return max_states_; }
  // The lookahead of a token in bytes.
  size_t longest_token() const { return longest_token_; }
  Error TooManySteps() const {
    return Error::Unsupported("the grammar takes too long to compile; make it smaller");
  }
  Error TooManyStates() const {
    return Error::Unsupported("the grammar needs more than ", max_states_,
                              " states; lower its repetition counts or lengths");
  }

 private:
  uint64_t steps_;
  uint32_t max_states_;
  size_t longest_token_;
};

// Rules under construction.
class RuleSet {
 public:
  RuleSet();

  ExprId Empty() const { return 0; }
  ExprId Never() const { return 1; }
  ExprId Literal(std::string_view bytes);
  ExprId Byte(uint8_t low, uint8_t high);
  ExprId Byte(char c) { return Byte(static_cast<uint8_t>(c), static_cast<uint8_t>(c)); }
  ExprId Bytes(std::string_view set);          // one of these bytes
  ExprId CodePoints(const CodePointSet& set);  // one of these, as UTF-8
  ExprId Sequence(std::vector<ExprId> parts);
  ExprId Choice(std::vector<ExprId> parts);
  ExprId Repeat(ExprId part, uint32_t min, uint32_t max);
  ExprId Optional(ExprId part) { return Repeat(part, 0, 1); }
  ExprId Call(RuleId rule);
  // Node 0 is the start; `nodes - 1` is the end.
  ExprId Graph(uint32_t nodes, std::vector<GraphEdge> edges);
  ExprId Automaton(Dfa dfa);
  ExprId AtBegin();
  ExprId AtEnd();

  // A rule without a body matches nothing until it gets one.
  RuleId AddRule(std::string name);
  void SetBody(RuleId rule, ExprId body) { bodies_[rule] = body; }
  ExprId body(RuleId rule) const { return bodies_[rule]; }
  const std::string& name(RuleId rule) const { return names_[rule]; }
  size_t rule_count() const { return bodies_.size(); }

  const Expr& operator[](ExprId id) const { return exprs_[id]; }
  size_t size() const { return exprs_.size(); }

 private:
  ExprId Add(Expr expr);

  std::vector<Expr> exprs_;
  std::vector<ExprId> bodies_;
  std::vector<std::string> names_;
};

}  // namespace celer::grammar
