// JSON whose objects keep the order of their fields, with the bounds of json.h.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"
#include "io/json/json.h"

namespace celer {

Result<nlohmann::ordered_json> ParseOrderedJson(std::string_view text, std::string_view source,
                                                const JsonLimits& limits = {});

}  // namespace celer
