// Files that may be compressed with gzip.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace celer::cli {

// A text of at most max_bytes, unpacked if the file begins as gzip's do.
Result<std::string> ReadMaybeGzip(const std::filesystem::path& path, size_t max_bytes);

// `source` is what error sentences call it.
Result<std::string> Gunzip(std::string_view packed, const std::string& source, size_t max_bytes);

}  // namespace celer::cli
