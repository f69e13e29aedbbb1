// A causal convolution over the tokens of each sequence, channel by channel, and SiLU:
// x[t, c] <- silu(bias[c] + sum over j of w[c, j] * x[t - (kernel - 1) + j, c]).
//
// A token's result depends on its own sequence alone, bit for bit: not on the chunk it is computed in, the rest of
// the batch, or the number of threads.
#pragma once

#include <cstdint>

#include "device/thread_pool.h"
#include "kernels/llm/batch.h"
#include "kernels/llm/recurrent_state.h"

namespace celer {

struct CausalConvArgs {
  static constexpr int64_t kMaxKernel = 16;

  RaggedBatch batch;
  const float* w = nullptr;     // [channels, kernel]
  const float* bias = nullptr;  // [channels]; may be none
  int64_t channels = 0;
  int64_t kernel = 0;      // 1 to kMaxKernel
  float* x = nullptr;      // [tokens, channels], in and out
  RecurrentStates states;  // [kernel - 1, channels] in each: the inputs of the last tokens, the oldest first
  ThreadPool* pool = nullptr;
};

void CausalConv(const CausalConvArgs& args);

}  // namespace celer
