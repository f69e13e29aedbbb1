// Result with the two macros that make it pleasant to pass on.
#pragma once

#include "celer/error.h"

#define CELER_CONCAT_(a, b) a##b
#define CELER_CONCAT(a, b) CELER_CONCAT_(a, b)

// CELER_ASSIGN(auto file, MappedFile::Open(path)): the value, or return the error.
#define CELER_ASSIGN(declaration, expression) \
  CELER_ASSIGN_(declaration, (expression), CELER_CONCAT(celer_result_, __LINE__))
#define CELER_ASSIGN_(declaration, expression, name) \
  auto name = expression;                            \
  if (!name) return name.error();                    \
  declaration = std::move(*name)

// CELER_RETURN_IF_ERROR(Validate(x)): for a Status.
#define CELER_RETURN_IF_ERROR(expression)                                             \
  do {                                                                                \
    if (auto celer_status = (expression); !celer_status) return celer_status.error(); \
  } while (0)
