// The gated delta rule: each value head of a sequence keeps a matrix S [key_dim, value_dim], and for each token
//   S <- decay * S;  S <- S + k (beta * (v - S^T k))^T;  y = S^T q
// with decay = exp(-rate * softplus(a + dt_bias)), beta = sigmoid(b), k and q of length 1, q divided by
// sqrt(key_dim). out = RMSNorm(y) * norm * silu(z), head by head.
//
// The columns of S do not depend on each other, so that prompts are split over heads and columns, and each piece of S
// stays in the first cache over all tokens of the prompt. A token's result depends on its own sequence alone, bit for
// bit: not on the chunk it is computed in, the rest of the batch, or the number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "device/thread_pool.h"
#include "device/variant.h"
#include "kernels/llm/batch.h"
#include "kernels/llm/delta_rule/delta_scan.h"
#include "kernels/llm/recurrent_state.h"

namespace celer {

struct DeltaRuleArgs {
  RaggedBatch batch;
  int64_t key_heads = 0, key_dim = 0;
  int64_t value_heads = 0, value_dim = 0;  // value_heads: a multiple of key_heads
  // Value head h has key head h % key_heads, else h / (value_heads / key_heads).
  bool tiled_values = false;
  float* qkv = nullptr;  // [tokens, 2 * key_heads * key_dim + value_heads * value_dim]; q and k are scratch
  const float* z = nullptr;  // [tokens, value_heads * value_dim]
  float* a = nullptr;        // [tokens, value_heads], scratch, as is b
  float* b = nullptr;
  const float* rate = nullptr;     // [value_heads]
  const float* dt_bias = nullptr;  // [value_heads]
  const float* norm = nullptr;     // [value_dim]
  float eps = 1e-6f;
  RecurrentStates states;  // DeltaStateFloats() in each
  float* out = nullptr;    // [tokens, value_heads * value_dim]
  ThreadPool* pool = nullptr;
};

void DeltaRule(const DeltaRuleArgs& args);

using DeltaScanFn = void (*)(const DeltaScan& scan);
std::span<const Variant<DeltaScanFn>> DeltaScanVariants();

namespace portable {
void ScanDelta(const DeltaScan& scan);
}
namespace x86 {
void ScanDeltaAvx2(const DeltaScan& scan);
void ScanDeltaAvx512(const DeltaScan& scan);
}  // namespace x86

}  // namespace celer
