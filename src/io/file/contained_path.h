// Path traversal: file names that come from inside a file (shards, external data) may not lead out of its
// folder.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace celer {

// The canonical path of the regular file `name` inside `folder`. Refuses absolute names, "..", and links that
// lead out of the folder to anything but a model file of the same name: so users may keep weights elsewhere,
// and a folder that somebody else made cannot have their other files read. In Hugging Face's download cache
// files of models--x/snapshots/y are links to models--x/blobs, which are followed too. `source` is the file
// that holds the name. See docs/adr/0002-trust.md.
Result<std::filesystem::path> ResolveInside(const std::filesystem::path& folder, std::string_view name,
                                            std::string_view source);

}  // namespace celer
