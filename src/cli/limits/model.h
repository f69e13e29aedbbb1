// A model's shape from the config.json it was published with (the Hugging Face form).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "celer/limits.h"

namespace celer::cli {

Result<LlmShape> ShapeFromConfigJson(const std::filesystem::path& path);

// `where` starts every error sentence; `name` becomes the shape's name.
Result<LlmShape> ParseConfigShape(std::string_view text, const std::string& where, const std::string& name);

}  // namespace celer::cli
