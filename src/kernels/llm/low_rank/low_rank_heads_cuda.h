// Terms of latent attention's kv_b (kernels/llm/latent/latent.h), whose rows are the keys and then the values of each head,
// where attention takes them absorbed: a query goes into the latent space by the keys' rows turned, what comes out of it
// back by the values' rows.
#pragma once

#include "kernels/llm/low_rank/low_rank_cuda.h"

namespace celer::cuda {

struct LowRankHeadsArgs {
  LowRankPlan plan;
  int rows = 0;              // of the batch
  int first = 0, count = 0;  // which of them: x and out have these alone
  int place = 0;
  int heads = 0, kv_rank = 0, nope_dim = 0, value_dim = 0;
  bool keys = false;  // out += A' (B of the keys)' x, else out += (B of the values) A x
  const float* x = nullptr;
  int64_t x_row = 0, x_head = 0;  // from one to the next
  float* out = nullptr;
  int64_t out_row = 0, out_head = 0;
};
// A token's sums depend on the ranks alone.
cudaError_t LaunchLowRankHeads(const LowRankHeadsArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
