#pragma once

#include <string_view>

#include "text/template/jinja/ast.h"

namespace celer::jinja {

FilterFn FindLayoutFilter(std::string_view name);  // null when there is none

}  // namespace celer::jinja
