#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace celer {

// Sees [tokens, hidden] after the embedding (layer -1) and after each layer.
using LayerWatch = std::function<void(int64_t layer, std::span<const float> x)>;

}  // namespace celer
