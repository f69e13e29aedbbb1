#pragma once

#include <memory>
#include <string_view>

#include "text/template/jinja/ast.h"

namespace celer::jinja {

// Throws TemplateError with the line. `source` must be valid UTF-8.
std::shared_ptr<const Template> Parse(std::string_view source);

// As Jinja does, refuses a filter or test that does not exist, except under an `if`, where it may never be
// reached.
void CheckNames(const Template& source);

}  // namespace celer::jinja
