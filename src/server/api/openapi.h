// /openapi.json: generated from the tables of routes and parameters.
#pragma once

#include <string>

namespace celer::server {

std::string OpenApiText(bool needs_key);

}  // namespace celer::server
