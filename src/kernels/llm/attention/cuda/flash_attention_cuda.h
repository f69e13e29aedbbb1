// Attention of many tokens of a sequence at once on the tensor cores: 64 or 128 queries at a time against 64
// or 128 keys of the paged KV.
#pragma once

#include "kernels/llm/attention/cuda/attention_scores.h"

namespace celer::cuda {

struct FlashAttentionArgs {
  // splits are not used; without `partial` long sequences are not cut. Of tickets the first one, and two for
  // each 128 queries of a head where there are few.
  DeviceAttentionArgs base;
  const int32_t* seq_start = nullptr;  // [sequences + 1], on the device
  int sequences = 0;
  int longest = 0;  // tokens of one sequence in the batch, at most
  AttentionScores scores = {};
};

bool FlashAttentionRuns(const DeviceKv& kv);  // heads of up to 128, or up to 256 in f16 and bf16
// Queries and weights are rounded to the type of the KV, or to f16 where that has 8 bits; sums are f32.
cudaError_t LaunchFlashAttention(const FlashAttentionArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
