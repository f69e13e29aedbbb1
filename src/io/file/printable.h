// Names from files, made fit for an error sentence: control bytes and broken UTF-8 escaped, length bounded.
#pragma once

#include <string>
#include <string_view>

namespace celer {

std::string Printable(std::string_view text, size_t max_bytes = 100);

}  // namespace celer
