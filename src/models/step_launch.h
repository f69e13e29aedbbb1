// How the kernels of a decode step get to a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "core/result.h"

namespace celer {

enum class StepLaunch : uint8_t {
  kEager,  // one by one, each time
  kGraph,  // as one captured graph
  kFused,  // so too, all layers in one kernel where there is one that can run them
};

inline Result<StepLaunch> ParseStepLaunch(const std::string& text) {
  if (text == "eager") return StepLaunch::kEager;
  if (text == "graph") return StepLaunch::kGraph;
  if (text == "fused") return StepLaunch::kFused;
  return Error::Invalid("--launch '", text, "' is not one of eager, graph, fused");
}

}  // namespace celer
