#include "graph/load/pnnx/expression.h"

#include <fmt/format.h>

#include <charconv>

#include "io/file/printable.h"

namespace celer::graph {
namespace {

constexpr int kDeepest = 200;
constexpr size_t kLongest = 1 << 20;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Expression> Parse() {
    if (text_.size() > kLongest) return Error::Corrupt("an expression of ", text_.size(), " characters");
    CELER_ASSIGN(Expression expression, Any(0));
    if (at_ < text_.size()) return Expected("the end");
    return expression;
  }

 private:
  Error Expected(std::string_view what) const {
    return Error::Corrupt("'", Printable(text_), "': expected ", what, " at ", at_);
  }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Result<Expression> Any(int depth) {
    if (depth > kDeepest) return Error::Corrupt("'", Printable(text_), "' is nested deeper than ", kDeepest);
    if (Take('[')) {
      Expression list{.kind = Expression::Kind::kList};
      if (Take(']')) return list;
      CELER_RETURN_IF_ERROR(Items(&list, ']', depth));
      return list;
    }
    if (Take('@')) {
      Expression input{.kind = Expression::Kind::kInput};
      const auto [end, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), input.number);
      if (error != std::errc() || input.number < 0) return Expected("a number");
      at_ = static_cast<size_t>(end - text_.data());
      return input;
    }
    const size_t end = std::min(text_.find_first_of("(),[]@", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    if (word.empty()) return Expected("an expression");
    at_ = end;
    if (Take('(')) {
      Expression call{.kind = Expression::Kind::kCall, .name = std::string(word)};
      if (Take(')')) return call;
      CELER_RETURN_IF_ERROR(Items(&call, ')', depth));
      return call;
    }
    return Literal(word);
  }

  Status Items(Expression* into, char close, int depth) {
    while (true) {
      CELER_ASSIGN(Expression item, Any(depth + 1));
      into->items.push_back(std::move(item));
      if (Take(close)) return {};
      if (!Take(',')) return Expected(close == ')' ? "',' or ')'" : "',' or ']'");
    }
  }

  static Expression Literal(std::string_view word) {
    if (word == "True" || word == "False")
      return {.kind = Expression::Kind::kBool, .number = word == "True" ? 1 : 0};
    if (word == "None") return {.kind = Expression::Kind::kNone};
    Expression number{.kind = Expression::Kind::kInt};
    const char* const last = word.data() + word.size();
    if (const auto [end, error] = std::from_chars(word.data(), last, number.number);
        error == std::errc() && end == last)
      return number;
    number.kind = Expression::Kind::kFloat;
    if (const auto [end, error] = std::from_chars(word.data(), last, number.value);
        error == std::errc() && end == last)
      return number;
    return {.kind = Expression::Kind::kText, .name = std::string(word)};
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<Expression> ParseExpression(std::string_view text) {
  return Parser(text).Parse();
}

std::string Print(const Expression& e) {
  using K = Expression::Kind;
  std::string items;
  for (const Expression& item : e.items) items += (items.empty() ? "" : ",") + Print(item);
  switch (e.kind) {
    case K::kCall:
      return e.name + "(" + items + ")";
    case K::kList:
      return "[" + items + "]";
    case K::kInput:
      return "@" + std::to_string(e.number);
    case K::kInt:
      return std::to_string(e.number);
    case K::kFloat: {
      std::string text = fmt::format("{}", e.value);
      return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
    }
    case K::kBool:
      return e.number != 0 ? "True" : "False";
    case K::kNone:
      return "None";
    case K::kText:
      return e.name;
  }
  return "";
}

}  // namespace celer::graph
