// The functions a template can call: filters, tests, methods of strings, lists and dicts, and globals.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/jinja/ast.h"
#include "text/template/jinja/value.h"

namespace celer::jinja {

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

// A global function or a method bound to its object; a filter has the same form.
struct FunctionObject : Object {
  std::string name;
  Value self;
  FilterFn call = nullptr;
};

struct CyclerObject : Object {
  std::vector<Value> items;
  size_t position = 0;
};

struct JoinerObject : Object {
  Value separator;
  bool used = false;
};

FilterFn FindFilter(std::string_view name);  // null when there is none
TestFn FindTest(std::string_view name);
// The method of this name on this kind of value. *forbidden: it exists, but would change the value.
FilterFn FindMethod(Kind kind, std::string_view name, bool* forbidden);
FilterFn FindStringMethod(std::string_view name);
FilterFn FindGlobal(std::string_view name);

Value MakeFunction(Budget& budget, std::string name, FilterFn call, Value self);

// Matches arguments to a signature as Python does: one pointer per name, null when not given.
std::vector<const Value*> Bind(const char* function, const Args& args,
                               std::initializer_list<const char*> names, size_t required);
// The integer, string or truth in a bound argument, with a default; they throw on another type.
int64_t IntArg(const char* function, const Value* value, int64_t fallback);
const std::string& StringArg(const char* function, const Value* value);
bool BoolArg(const Value* value, bool fallback);
std::optional<double> ParseFloat(std::string_view source);  // as Python's float()

}  // namespace celer::jinja
