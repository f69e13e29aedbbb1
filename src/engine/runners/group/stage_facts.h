// What rank 0 knows of the other stages of a pipeline: what they read and compute in a step.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "engine/runners/group/stage_link.h"
#include "models/config/decoder_config.h"
#include "models/config/layer_range.h"
#include "models/load/model.h"
#include "models/step_work.h"

namespace celer {

// Of the first of the ranks that share a stage's layers; the parts of the others are as large, to one block.
struct StageFacts {
  DecoderConfig config;
  StepMatrices matrices;
  int64_t kv_bytes_per_token = 0;
};

// Of all stages but this one; all ranks at once. `stages` are the layers of each.
Result<std::vector<StageFacts>> GatherStages(StageLink& link, const Model& model, int64_t kv_bytes_per_token,
                                             const std::vector<LayerRange>& stages);

}  // namespace celer
