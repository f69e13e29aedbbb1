// File names that come from inside a file (shards, external data) may not lead out of its folder.
#pragma once

#include <filesystem>
#include <string_view>

#include "core/result.h"

namespace celer {

// The canonical path of the regular file `name` inside `folder`. Refuses absolute names, "..", and links that
// lead elsewhere; the one exception is Hugging Face's download cache, where files of models--x/snapshots/y
// are links to models--x/blobs. `source` is the file that holds the name.
Result<std::filesystem::path> ResolveInside(const std::filesystem::path& folder, std::string_view name,
                                            std::string_view source);

}  // namespace celer
