// From options to the device that runs the model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "celer/options.h"
#include "engine/runners/runner.h"

namespace celer {

class Model;
struct Predictor;

// What replicas on one CPU have in common: the first one loads it, the others find it here.
struct SharedWeights {
  int replicas = 1;  // that divide the memory for keys and values
  std::shared_ptr<const Model> model = {};
  std::shared_ptr<const Predictor> predictor = {};
  std::optional<int64_t> room = {};  // for the keys and values of all of them
};

// Loads the model where the options say, with its KV. `kv_host_blocks` is the room for blocks that are
// swapped out.
// With `speculation` mtp it has a predictor, too.
Result<std::unique_ptr<Runner>> MakeRunner(const EngineOptions& options, int64_t kv_host_blocks = 0,
                                           SharedWeights* shared = nullptr);

// "random:llama-2-7b": a shape without a file, for benchmarks.
inline constexpr std::string_view kRandomModel = "random:";

// Whether the model's own layers for multi-token prediction are to draft.
inline bool DraftsWithPredictor(const Speculation& speculation) {
  return speculation.kind == Speculation::Kind::kDraft && speculation.draft == "mtp";
}

}  // namespace celer
