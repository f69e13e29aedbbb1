// Multi-head latent attention, absorbed: the KV of a token is one row, its latent and one rotated key for all heads,
// and is both key and value. A query is taken into the latent space (LatentQkv), so that the ordinary kernel
// (kernels/llm/attention) attends with all heads on the one row, and what comes out is taken back (LatentValues).
//
// Prompts go the same way as single tokens. Keys and values expanded for each head would need fewer operations for
// long chunks, but round differently: a token's result would depend on the chunk it is in.
#pragma once

#include <cstdint>

#include "device/thread_pool.h"
#include "kernels/llm/batch.h"
#include "kernels/llm/rope/rope_layout.h"
#include "kernels/llm/weight_view.h"

namespace celer {

struct LatentQkvArgs {
  RaggedBatch batch;
  const float* x = nullptr;     // [tokens, hidden]
  const float* norm = nullptr;  // [hidden]
  float eps = 1e-5f;
  int64_t heads = 0, kv_rank = 0, nope_dim = 0, rope_dim = 0;
  WeightView q_a;                    // [q_rank, hidden], or none
  WeightView q_b;                    // [heads * (nope_dim + rope_dim), q_rank, or hidden without q_a]
  WeightView kv_a;                   // [kv_rank + rope_dim, hidden]
  WeightView k_b;                    // [heads * kv_rank, nope_dim]
  const float* q_a_bias = nullptr;   // may be none
  const float* kv_a_bias = nullptr;  // may be none
  const float* q_a_norm = nullptr;   // [q_rank]
  const float* kv_a_norm = nullptr;  // [kv_rank]
  float latent_eps = 1e-6f;          // of these two norms
  RopeLayout layout = RopeLayout::kHalf;
  const float* rope_cos = nullptr;  // [tokens, rope_dim / 2], any attention factor included
  const float* rope_sin = nullptr;
  KvLayerView kv;            // one head of kv_rank + rope_dim; v is k
  float* q_low = nullptr;    // scratch [tokens, q_rank]
  float* q_heads = nullptr;  // scratch [tokens, heads, nope_dim + rope_dim]
  float* kv_row = nullptr;   // scratch [tokens, kv_rank + rope_dim]
  float* q_out = nullptr;    // [tokens, heads, kv_rank + rope_dim]
  ThreadPool* pool = nullptr;
};

void LatentQkv(const LatentQkvArgs& args);

struct LatentValuesArgs {
  const float* attention = nullptr;  // [tokens, heads, row]
  int64_t tokens = 0, heads = 0;
  int64_t row = 0;       // kv_rank + rope_dim, whose last part is not used
  WeightView v_b;        // [heads * value_dim, kv_rank]
  float* out = nullptr;  // [tokens, heads, value_dim]
  ThreadPool* pool = nullptr;
};

void LatentValues(const LatentValuesArgs& args);

}  // namespace celer
