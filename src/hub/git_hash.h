// The name that git gives to a file's content: the only hash that the hub publishes for small files.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace celer::cli {

// 40 hexadecimal digits; empty where the system forbids SHA-1.
Result<std::string> GitBlobHash(const std::filesystem::path& path);

}  // namespace celer::cli
