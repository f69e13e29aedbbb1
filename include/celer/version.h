// The version of the library, "0.1.0": what `celer --version` prints and find_package(celer) compares.
#pragma once

#include <string_view>

namespace celer {

std::string_view Version();

}  // namespace celer
