// The syntax tree. It is built once, never changed, and shared by all renderings.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "text/template/jinja/value.h"

namespace celer::jinja {

class Interpreter;
struct Args;

// Filters take the piped value; tests answer yes or no.
using FilterFn = Value (*)(Interpreter&, const Value&, const Args&);
using TestFn = bool (*)(Interpreter&, const Value&, const Args&);

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConst,      // constant
  kName,       // name
  kNsRef,      // name.text, as the target of a set
  kTuple,      // children
  kList,       // children
  kDict,       // children: key, value, key, value ...
  kNegate,     // child
  kPlus,       // child
  kNot,        // child
  kAnd,        // children
  kOr,         // children
  kMath,       // children joined by ops, from left to right
  kCompare,    // children joined by ops, chained as in Python
  kConcat,     // children joined by ~
  kCond,       // children: test, then, else (may be null)
  kAttribute,  // child.text
  kItem,       // children: object, key
  kSlice,      // children: object, start, stop, step (each may be null)
  kCall,       // child(arguments)
  kFilter,     // child|text(arguments); a null child is the enclosing block's text
  kTest,       // child is text(arguments)
};

// What `autoescape` is where a piece of the template stands: known, or only at run time.
enum class Autoescape : uint8_t { kOff, kOn, kVolatile };

enum class Op : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn
};

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star, star_star;  // *args, **kwargs
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 0;
  int depth = 1;
  int name = -1;                             // kName, kNsRef: index into Template::names
  Autoescape autoescape = Autoescape::kOff;  // kConcat, kFilter of a block
  std::string text;                          // attribute, filter, test
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<Op> ops;
  std::unique_ptr<CallArguments> arguments;
  FilterFn filter = nullptr;  // null: there is no such filter, an error once it is used
  TestFn test = nullptr;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

enum class StmtKind : uint8_t {
  kData,         // text
  kOutput,       // value, printed
  kIf,           // branches, otherwise
  kFor,          // target, value, filter, recursive, body, otherwise
  kSet,          // target, value
  kSetBlock,     // target, value (a filter chain or null), body
  kMacro,        // macro
  kCallBlock,    // value (a call), macro
  kFilterBlock,  // value (a filter chain), body
  kWith,         // bindings, body
  kScope,        // body, in a scope of its own: the generation tag
  kBlock,        // text (its name), body; recursive: it sees the scope around it
  kAutoescape,   // value, body
  kLoad,         // text: the tag; needs another template, and there is none
  kBreak,
  kContinue,
};

struct MacroDef {
  std::string name;
  int name_id = -1;
  std::vector<std::pair<int, std::string>> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
};

struct Stmt {
  StmtKind kind = StmtKind::kData;
  int line = 0;
  Autoescape autoescape = Autoescape::kOff;  // kOutput, kFor
  std::string text;
  ExprPtr target, value, filter;
  bool recursive = false;
  Body body, otherwise;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<ExprPtr, ExprPtr>> bindings;
  std::unique_ptr<MacroDef> macro;
};

// Names every template may meet; their indices are fixed.
enum WellKnownName { kNameLoop, kNameCaller, kNameKwargs, kNameVarargs, kWellKnownNames };

struct Template {
  Body body;
  std::vector<std::string> names;
  std::unordered_map<std::string, const Stmt*> blocks;
  std::unordered_set<std::string> fields;  // names after a dot, and strings: what it may read of a message
};

}  // namespace celer::jinja
