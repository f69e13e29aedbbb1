// Whether a file system has room, asked before hours of writing and not after.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace celer {

// One sentence, ended by `remedy`, if less than `bytes` are free where `path` is or will be.
Status CheckFreeSpace(const std::filesystem::path& path, int64_t bytes, std::string_view remedy);

}  // namespace celer
