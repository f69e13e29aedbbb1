// Attention on the GPU over the paged KV: every token of the batch against the keys of its own sequence up to
// its own position.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/llm/matmul/cuda/wgmma/wgmma_activations.h"
#include "kernels/shared/cuda/device_batch.h"

namespace celer::cuda {

struct DeviceAttentionArgs {
  DeviceBatch batch;
  DeviceKv kv;
  const float* q = nullptr;  // [count, heads, head_dim], rotated
  // Instead of q, for flash attention: as it multiplies them, bf16 if the KV is and f16 otherwise.
  const void* narrow_q = nullptr;
  int heads = 0;
  float scale = 1;
  int window = 0;        // 0: all
  float* out = nullptr;  // [count, heads, head_dim]
  bool decode = false;   // every sequence has one token: all keys in front of it are there already
  // Instead of out, for up to AttentionTokens() tokens, and for flash attention with heads of a multiple
  // of 32.
  WgmmaActivations wgmma;
  // Instead of out; for flash attention with such heads: bf16 [count, rows_width].
  void* rows = nullptr;
  int64_t rows_width = 0;
  float* partial = nullptr;    // scratch, AttentionPartialFloats() floats
  int32_t* tickets = nullptr;  // [kAttentionTokens or count, heads] zeros; left zero
  int splits = 1;              // AttentionSplits(); with 1, partial and tickets are not used
  bool steady = false;         // a token's result depends on its own sequence alone, whatever the batch
  int least_blocks = 0;        // of the KV in one split of a sequence, at least; LaunchAttention() sets it
};

constexpr int kAttentionTokens = 512;  // of one launch at most; more tokens take several
// Of one launch. Of 64 tokens scratch has all splits, so that a token's do not depend on how many there are.
constexpr int AttentionTokens(bool steady) {
  return steady ? 64 : kAttentionTokens;
}

// Keys of one sequence are split over this many units of work at most. How many there are depends on its own
// length, among up to four tokens and among five to eight on nothing else: there a token's result does not
// depend on the others in the batch.
int AttentionSplits(int heads, int kv_heads);
// Scratch for batches of up to `tokens` tokens. There is room for the splits of 64; those of more tokens are
// fewer.
int64_t AttentionPartialFloats(int64_t tokens, int heads, int kv_heads, int padded_dim);

// For single tokens and short prompts: each token loads its keys itself, shared by the query heads of a
// group. f32 sums; queries and weights are multiplied as two 16-bit parts each.
cudaError_t LaunchAttention(const DeviceAttentionArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
