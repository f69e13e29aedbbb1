// What the files of the interpreter share and nobody else sees.
#pragma once

#include "text/template/jinja/interpreter.h"

namespace celer::jinja {

struct Interpreter::MacroObject : Object {
  const MacroDef* definition = nullptr;
  std::shared_ptr<Scope> scope;
};

// Items are drawn one at a time, because the filter of a loop may depend on what its body has done so far.
struct Interpreter::LoopObject : Object {
  const Stmt* stmt = nullptr;
  std::shared_ptr<Scope> outer;
  std::vector<Value> source;
  size_t next = 0;
  bool filtered = false;  // what is left of source has passed the filter
  std::optional<Value> after;
  Value before, current;
  int64_t index0 = -1;
  int depth0 = 0;
  std::optional<int64_t> length;
  std::optional<Value> last_changed;
};

class Interpreter::Nested {
 public:
  explicit Nested(Interpreter& in) : in_(in) {
    if (++in_.depth_ > in_.budget_.limits().depth)
      throw TemplateError("template exceeded a depth of " + std::to_string(in_.budget_.limits().depth) +
                          "; a macro may call itself without end");
  }
  ~Nested() { --in_.depth_; }

 private:
  Interpreter& in_;
};

}  // namespace celer::jinja
