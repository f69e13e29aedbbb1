// softmax(q . k^T * scale) . v for every token of a ragged batch, over the paged KV, causal, with an optional
// window that slides or advances by whole chunks. Keys and values of the batch's own tokens are already in the KV (kernels/llm/qkv puts them
// there).
//
// A token's result depends on its own query and on the keys and values it sees alone, bit for bit: not on the
// chunk it is computed in, the rest of the batch, or the number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "device/thread_pool.h"
#include "device/variant.h"
#include "kernels/llm/batch.h"

namespace celer {

struct AttentionArgs {
  RaggedBatch batch;
  KvLayerView kv;
  const float* q = nullptr;      // [tokens, heads, head_dim], rotated
  int64_t heads = 0;             // a multiple of kv.kv_heads; each kv head serves heads / kv_heads queries
  float scale = 1.0f;            // 1 / sqrt(head_dim)
  int64_t window = 0;            // a token sees itself and window - 1 before it; 0 = all
  bool chunked = false;          // the window begins at its last multiple instead
  float softcap = 0;             // scores become cap * tanh(score / cap); 0: none
  const float* sinks = nullptr;  // [heads]: one more logit in a head's softmax, without a value; may be none
  // ALiBi: [heads], times how far a key lies behind the query (0 or less), added to the score; may be none.
  const float* slopes = nullptr;
  // Falcon's: slopes, positions and their products are bf16, and `scale` multiplies them, too.
  bool rounded_slopes = false;
  float* out = nullptr;  // [tokens, heads, head_dim]
  ThreadPool* pool = nullptr;
};

// The first key that the token at a position sees.
constexpr int64_t FirstKeyOf(int64_t position, int64_t window, bool chunked) {
  if (window == 0 || position < window) return 0;
  return chunked ? position / window * window : position - window + 1;
}

using AttentionFn = void (*)(const AttentionArgs&);

void Attention(const AttentionArgs& args);
std::span<const Variant<AttentionFn>> AttentionVariants();

namespace reference {
void Attention(const AttentionArgs& args);  // in double, one query after the other
}

}  // namespace celer
