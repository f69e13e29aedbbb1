// The version of the library, "0.3.0-dev": what `celer --version` prints. find_package(celer) compares its numbers.
#pragma once

#include <string_view>

namespace celer {

std::string_view Version();

}  // namespace celer
