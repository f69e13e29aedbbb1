// What a template may cost. A template comes with a model file or even with a request, so it is foreign code:
// it reaches nothing but its variables, and every value it makes is paid for from a budget.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace celer::jinja {

// Thrown inside the interpreter only; ChatTemplate turns it into an Error. `line` is 0 until it is known.
struct TemplateError : std::runtime_error {
  explicit TemplateError(const std::string& message, int at_line = 0)
      : std::runtime_error(message), line(at_line) {}
  int line;
  bool raised = false;  // by the template's own raise_exception()
};

struct Limits {
  int64_t steps = 20'000'000;       // evaluated nodes, plus one for every 16 bytes of memory that is filled
  int64_t string_bytes = 64 << 20;  // one string, and the whole output
  int64_t range_items = 100'000;    // as Jinja's own sandbox
  int depth = 600;                  // nested evaluation: expressions, blocks, macro calls
  int nesting = 128;                // lists in lists
  static constexpr int64_t kSourceBytes = 1 << 20;
  static constexpr int kSourceDepth = 200;  // nested syntax
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  void Charge(int64_t steps) {
    used_ += steps;
    if (used_ > limits_.steps)
      throw TemplateError("template exceeded " + std::to_string(limits_.steps) +
                          " steps; it loops or grows without end");
  }
  // Call before building a string of this size.
  void CheckString(int64_t bytes) const {
    if (bytes > limits_.string_bytes)
      throw TemplateError("template makes a string of more than " + std::to_string(limits_.string_bytes) +
                          " bytes");
  }
  void ChargeString(int64_t bytes) {
    CheckString(bytes);
    Charge(1 + bytes / 16);
  }
  void CheckNesting(int depth) const {
    if (depth > limits_.nesting)
      throw TemplateError("template nests values deeper than " + std::to_string(limits_.nesting) + " levels");
  }
  const Limits& limits() const { return limits_; }

 private:
  const Limits limits_;
  int64_t used_ = 0;
};

}  // namespace celer::jinja
