// norm + q, k, v projections + bias + qk-norm + rope + append to the paged KV: the first operator of a
// decoder layer.
#pragma once

#include <cstdint>

#include "device/thread_pool.h"
#include "kernels/llm/batch.h"
#include "kernels/llm/rope/rotate.h"
#include "kernels/llm/weight_view.h"

namespace celer {

// What one qk-norm spans, and when.
struct QkNormForm {
  // kHead: each head, by the same weights [head_dim]. kRow: all heads of a token as one row, by weights [heads *
  // head_dim]. kOwn: each head, by weights of its own [heads, head_dim].
  enum class Span : uint8_t { kHead, kRow, kOwn };
  Span span = Span::kHead;
  bool after_rope = false;  // kHead and kOwn alone
  bool layer_norm = false;  // LayerNorm instead of RMSNorm
};

struct QkvArgs {
  RaggedBatch batch;
  const float* x = nullptr;          // [tokens, hidden]
  const float* norm = nullptr;       // [hidden]
  bool layer_norm = false;           // LayerNorm instead of RMSNorm
  const float* norm_bias = nullptr;  // [hidden], of LayerNorm; may be none
  float eps = 1e-5f;
  // [heads * head_dim, hidden], [kv_heads * head_dim, hidden] twice. Without v the values are what k gives, before its
  // norm; without both the keys and values are in the KV already.
  WeightView q, k, v;
  const float* q_bias = nullptr;  // each may be none
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* q_norm = nullptr;  // none without qk-norm
  const float* k_norm = nullptr;
  const float* q_norm_bias = nullptr;  // of LayerNorm over kHead and kRow; may be none
  const float* k_norm_bias = nullptr;
  const float* v_norm = nullptr;  // [head_dim], RMSNorm of each head's values; may be none
  QkNormForm norm_form;
  RopeLayout layout = RopeLayout::kHalf;
  // [tokens, rope_dim / 2], any attention factor included; none where nothing rotates.
  const float* rope_cos = nullptr;
  const float* rope_sin = nullptr;
  int64_t rope_dim = 0;            // leading dimensions of a head that rotate
  const float* q_scale = nullptr;  // [tokens], of all queries of a token; none: 1
  float clip = 0;                  // what q, k and v are cut to, +-clip; 0: not
  int64_t heads = 0;
  KvLayerView kv;
  float* k_out = nullptr;  // scratch [tokens, kv_heads, head_dim]
  float* v_out = nullptr;  // scratch [tokens, kv_heads, head_dim]
  float* q_out = nullptr;  // [tokens, heads, head_dim]
  // With it q has two rows for each of a head's: those of its query, and behind them those of its gate. What they give,
  // [tokens, heads, 2, head_dim]; q_out gets the queries. Not with norm_form kRow.
  float* gated_out = nullptr;
  ThreadPool* pool = nullptr;
};

void Qkv(const QkvArgs& args);

}  // namespace celer
