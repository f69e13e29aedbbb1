// Models whose layers are all Llama's, by name. The others have configurations (models/config/presets.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "celer/limits.h"

namespace celer {

std::optional<LlmShape> FindPlainPreset(std::string_view name);
std::vector<std::string> PlainPresetNames();

}  // namespace celer
