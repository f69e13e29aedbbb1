#include "text/template/jinja/parser.h"

namespace celer::jinja {
namespace {

// The one filter of Jinja that is left out: a prompt must not depend on chance. Using it is an error, but
// only once it is reached.
constexpr std::string_view kRandom = "random";

// `soft`: inside an if, up to the next block with a scope of its own.
class NameChecker {
 public:
  void Check(const Body& body, bool soft) {
    for (const auto& s : body) Check(*s, soft);
  }

 private:
  void Check(const ExprPtr& pointer, bool soft) {
    if (!pointer) return;
    const Expr& e = *pointer;
    if (!soft && e.kind == ExprKind::kFilter && e.filter == nullptr && e.text != kRandom)
      throw TemplateError("there is no filter '" + e.text + "'", e.line);
    if (!soft && e.kind == ExprKind::kTest && e.test == nullptr)
      throw TemplateError("there is no test '" + e.text + "'", e.line);
    soft |= e.kind == ExprKind::kCond;
    for (const ExprPtr& child : e.children) Check(child, soft);
    if (!e.arguments) return;
    for (const ExprPtr& argument : e.arguments->positional) Check(argument, soft);
    for (const auto& [name, argument] : e.arguments->keyword) Check(argument, soft);
    Check(e.arguments->star, soft);
    Check(e.arguments->star_star, soft);
  }

  void Check(const Stmt& s, bool soft) {
    const bool own_scope = s.kind != StmtKind::kIf;
    Check(s.value, soft && s.kind != StmtKind::kSetBlock && s.kind != StmtKind::kFilterBlock);
    Check(s.filter, false);
    for (const auto& [test, body] : s.branches) {
      Check(test, true);
      Check(body, true);
    }
    for (const auto& [target, value] : s.bindings) Check(value, soft);
    Check(s.body, false);
    Check(s.otherwise, !own_scope);
    if (s.macro) {
      for (const ExprPtr& value : s.macro->defaults) Check(value, false);
      Check(s.macro->body, false);
    }
  }
};

}  // namespace

void CheckNames(const Template& source) {
  NameChecker().Check(source.body, false);
}

}  // namespace celer::jinja
