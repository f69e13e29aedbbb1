// softmax(scale q k + mask) v for f32 tensors of any layout: the attention of encoders, where all keys and
// values are there at once (kernels/llm/attention serves decoders with paged keys).
//
// Keys and values are packed once per head; then blocks of queries run one after the other, their scores
// staying in the cache. The output is deterministic: it does not depend on the number of threads.
#pragma once

#include <cstdint>

#include "device/thread_pool.h"
#include "kernels/shared/gemm/gemm_kernels.h"

namespace celer {

struct AttentionShape {
  int64_t outer = 1, inner = 1;  // products: batch and heads
  int64_t q_tokens = 0, tokens = 0, width = 0, v_width = 0;
};

// A matrix for each [outer, inner]; strides in elements, 0 repeats.
struct AttentionOperand {
  const float* data = nullptr;
  int64_t outer_stride = 0, inner_stride = 0, row_stride = 0, col_stride = 1;
};

struct DenseAttentionArgs {
  AttentionShape shape = {};
  AttentionOperand q = {};  // [q_tokens, width]
  AttentionOperand k = {};  // [width, tokens]
  AttentionOperand v = {};  // [tokens, v_width]
  AttentionOperand mask =
      {};  // [q_tokens, tokens], added to the scores; its column stride is 0 or 1; or none
  float scale = 1;
  float* out = nullptr;  // [q_tokens, v_width], columns side by side
  int64_t out_outer_stride = 0, out_inner_stride = 0, out_row_stride = 0;
  float* workspace = nullptr;  // DenseAttentionWorkspaceFloats() of them, 64-byte aligned
  ThreadPool* pool = nullptr;
};

int64_t DenseAttentionWorkspaceFloats(const AttentionShape& shape, int threads);
void DenseAttention(const DenseAttentionArgs& args);

}  // namespace celer
