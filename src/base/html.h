// Text inside HTML and XML.
#pragma once

#include <string>
#include <string_view>

namespace celer {

// & < > ' " as references, in the forms that Python's markupsafe writes: fit for content and attributes.
std::string EscapeHtml(std::string_view text);

}  // namespace celer
