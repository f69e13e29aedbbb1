// --model: a built-in name, or a path to something that says a model's shape.
#pragma once

#include <string>

#include "celer/limits.h"

namespace celer::cli {

// A built-in name ("llama-3.1-8b"), a config.json, a folder that holds one, or a .gguf file. The shape has
// passed Validate().
Result<LlmShape> ResolveModel(const std::string& name_or_path);

}  // namespace celer::cli
