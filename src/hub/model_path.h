// MODEL on the command line: a path, or the name of a model that was pulled.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace celer::cli {

// An existing file or folder as it is; else where `celer pull` left the model of that name ("smollm2",
// "hf:org/name"). NotFound says what to do.
Result<std::filesystem::path> ResolveModelPath(const std::string& path_or_name);

}  // namespace celer::cli
