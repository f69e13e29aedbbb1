// Mamba-2: each head of a sequence keeps a matrix S [state_dim, head_dim], and for each token
//   S <- decay * S + B (step * x)^T;  y = S^T C + D * x
// with step = softplus(dt + dt_bias), kept within bounds, and decay = exp(-rate * step); the heads of a group share B and
// C. out = RMSNorm(y * silu(z)) * norm, over all values of a token or over equal parts of them.
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
#include "kernels/llm/mamba2/mamba2_scan.h"
#include "kernels/llm/recurrent_state.h"

namespace celer {

struct Mamba2Args {
  RaggedBatch batch;
  int64_t groups = 0, state_dim = 0;
  int64_t heads = 0, head_dim = 0;   // heads: a multiple of groups
  const float* xbc = nullptr;        // [tokens, heads * head_dim + 2 * groups * state_dim]: x, B, C
  const float* z = nullptr;          // [tokens, heads * head_dim]
  float* dt = nullptr;               // [tokens, heads]; scratch
  float* decay = nullptr;            // [tokens, heads]; scratch
  const float* rate = nullptr;       // [heads]
  const float* dt_bias = nullptr;    // [heads]
  const float* skip = nullptr;       // [heads], D
  float step_min = 0, step_max = 0;  // step_max 0: none
  const float* norm = nullptr;       // [heads * head_dim]
  int64_t norm_groups = 1;           // equal parts, each with a norm of its own
  float eps = 1e-5f;
  RecurrentStates states;  // DeltaStateFloats(state_dim, heads, head_dim) in each
  float* out = nullptr;    // [tokens, heads * head_dim]
  ThreadPool* pool = nullptr;
};

void Mamba2(const Mamba2Args& args);

using Mamba2ScanFn = void (*)(const Mamba2Scan& scan);
std::span<const Variant<Mamba2ScanFn>> Mamba2ScanVariants();

namespace portable {
void ScanMamba2(const Mamba2Scan& scan);
}
namespace x86 {
void ScanMamba2Avx2(const Mamba2Scan& scan);
void ScanMamba2Avx512(const Mamba2Scan& scan);
}  // namespace x86

}  // namespace celer
