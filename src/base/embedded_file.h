// A file that was compiled in (cmake/CelerEmbed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace celer {

struct EmbeddedFile {
  std::string_view path, content_type, etag, body;
};

}  // namespace celer
