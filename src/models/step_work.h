// What one step of a decoder cannot avoid, operator by operator: weights and KV read once each, and the
// arithmetic by the type it runs in. Activations are not counted: they stay in caches.
#pragma once

#include <cstdint>
#include <vector>

#include "celer/limits.h"
#include "models/decoder.h"

namespace celer {

// Only operators that the model has, in the order of the forward pass.
std::vector<OperatorWork> CountStep(const DecoderConfig& config, const DecoderWeights& weights,
                                    int64_t kv_bytes_per_token, const StepShape& shape);

// The arithmetic that the kernels use for this matrix where the CPU has it: "int8", "bf16" or "f32".
const char* ComputeType(const WeightView& weight);

}  // namespace celer
