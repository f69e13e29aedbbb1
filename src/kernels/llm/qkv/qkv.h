// norm + q, k, v projections + bias + qk-norm + rope + append to the paged KV: the first operator of a
// decoder layer.
#pragma once

#include <cstdint>

#include "device/thread_pool.h"
#include "kernels/llm/batch.h"
#include "kernels/llm/rope/rotate.h"
#include "kernels/llm/weight_view.h"

namespace celer {

struct QkvArgs {
  RaggedBatch batch;
  const float* x = nullptr;     // [tokens, hidden]
  const float* norm = nullptr;  // [hidden]
  float eps = 1e-5f;
  WeightView q, k, v;             // [heads * head_dim, hidden], [kv_heads * head_dim, hidden] twice
  const float* q_bias = nullptr;  // each may be none
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* q_norm = nullptr;  // [head_dim], none without qk-norm
  const float* k_norm = nullptr;
  RopeLayout layout = RopeLayout::kHalf;
  const float* rope_cos = nullptr;  // [tokens, rope_dim / 2], any attention factor included
  const float* rope_sin = nullptr;
  int64_t rope_dim = 0;  // leading dimensions of a head that rotate
  int64_t heads = 0;
  KvLayerView kv;
  float* k_out = nullptr;  // scratch [tokens, kv_heads, head_dim]
  float* v_out = nullptr;  // scratch [tokens, kv_heads, head_dim]
  float* q_out = nullptr;  // [tokens, heads, head_dim]
  ThreadPool* pool = nullptr;
};

void Qkv(const QkvArgs& args);

}  // namespace celer
