// The page at /: files embedded in the program.
#pragma once

#include <span>
#include <string_view>

namespace celer::server {

struct PageFile {
  std::string_view path;          // as requested: "/", "/celer.css", ...
  std::string_view content_type;  // with its charset
  std::string_view etag;          // quoted, from the content
  std::string_view body;
};

std::span<const PageFile> PageFiles();

// The Content-Security-Policy that belongs on every one of them. The last two directives make the browser
// refuse any attempt to turn text into markup.
inline constexpr std::string_view kPageSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'";

}  // namespace celer::server
