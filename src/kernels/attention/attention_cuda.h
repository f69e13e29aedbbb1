// Attention on the GPU over the paged KV: every token of the batch against the keys of its own sequence up to
// its own position.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device_batch.h"

namespace celer::cuda {

struct DeviceAttentionArgs {
  DeviceBatch batch;
  DeviceKv kv;
  const float* q = nullptr;  // [count, heads, head_dim], rotated
  int heads = 0;
  float scale = 1;
  int window = 0;              // 0: all
  float* out = nullptr;        // [count, heads, head_dim]
  float* partial = nullptr;    // scratch, PartialFloats() floats
  int32_t* tickets = nullptr;  // [count, heads] zeros; left zero
  int splits = 1;              // with 1, partial and tickets are not used
};

// Keys of one sequence are split over this many blocks at most; the same for any batch, so that a token's
// result does not depend on the others.
int AttentionSplits(int heads, int kv_heads);
int64_t AttentionPartialFloats(int tokens, int heads, int kv_heads, int padded_dim);

// For single tokens and short pieces: each token loads its keys itself, shared by the query heads of a group.
cudaError_t LaunchAttention(const DeviceAttentionArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
