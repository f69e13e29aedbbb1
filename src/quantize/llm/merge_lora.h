// A copy of a Hugging Face folder with adapters added to its weights.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "models/lora/lora.h"

namespace celer {

// The weights keep their names and types; what `mix` does not change is copied. Refused in words: models that are no
// folder or are quantized, and changes that such a folder cannot hold (a bias where the model has none).
Status MergeLora(const std::filesystem::path& model, const LoraMix& mix, const std::filesystem::path& out);

}  // namespace celer
