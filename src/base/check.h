// CELER_CHECK is for a programmer's mistake: it prints the expression, both values and the place, then
// aborts. Bad input is never a CHECK; it is a Result (result.h).
#pragma once

#include <sstream>
#include <string>

namespace celer::internal {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression, const std::string& detail);

template <class A, class B>
[[noreturn]] void CheckOpFailed(const char* file, int line, const char* expression, const A& a, const B& b) {
  std::ostringstream detail;
  detail << a << " vs " << b;
  CheckFailed(file, line, expression, detail.str());
}

}  // namespace celer::internal

#define CELER_CHECK(condition)            \
  (static_cast<bool>(condition) ? void(0) \
                                : ::celer::internal::CheckFailed(__FILE__, __LINE__, #condition, ""))

#define CELER_CHECK_OP_(op, a, b)                                                                \
  do {                                                                                           \
    const auto& celer_a = (a);                                                                   \
    const auto& celer_b = (b);                                                                   \
    if (!(celer_a op celer_b))                                                                   \
      ::celer::internal::CheckOpFailed(__FILE__, __LINE__, #a " " #op " " #b, celer_a, celer_b); \
  } while (0)
#define CELER_CHECK_EQ(a, b) CELER_CHECK_OP_(==, a, b)
#define CELER_CHECK_NE(a, b) CELER_CHECK_OP_(!=, a, b)
#define CELER_CHECK_LT(a, b) CELER_CHECK_OP_(<, a, b)
#define CELER_CHECK_LE(a, b) CELER_CHECK_OP_(<=, a, b)
#define CELER_CHECK_GT(a, b) CELER_CHECK_OP_(>, a, b)
#define CELER_CHECK_GE(a, b) CELER_CHECK_OP_(>=, a, b)
