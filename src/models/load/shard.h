// How a model is split over the ranks of a tensor-parallel group: heads and the width of feed-forward blocks, so that
// each rank has some rows of the projections that make them and the same columns of those that read them, and the
// vocabulary. What adds up over the ranks is the output of attention and of each feed-forward block (CpuDecoder).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/config/decoder_config.h"
#include "weights/shard_source.h"
#include "weights/weight_plan.h"

namespace celer {

// One of several ranks.
struct ShardOf {
  int rank = 0, size = 1;
};

// What a rank has of a model.
struct Shard {
  DecoderConfig config;  // of its part: fewer heads, narrower blocks, fewer tokens
  TensorSlices slices;
  std::vector<int64_t> vocab;  // [ranks], how many tokens each has
};

// A sentence if the model has something that cannot be split yet.
Status CheckSplits(const DecoderConfig& config);

// Of a model without a file: `slices` stay empty.
Result<Shard> PlanShard(const DecoderConfig& config, const ShardOf& of);

// `plan` and `source` are those of the whole model, `embedding` as in ReadDecoder(). An error names sizes that work.
Result<Shard> PlanShard(const DecoderConfig& config, bool gguf, const std::string& embedding,
                        const TensorSource& source, const WeightPlan& plan, const ShardOf& of);

}  // namespace celer
