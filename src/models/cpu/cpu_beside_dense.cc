// A dense feed-forward block and experts side by side: both read the residual, each through its own norm, and what they
// give is normed again, each by itself and then their sum.
#include <algorithm>

#include "kernels/llm/low_rank/adapted.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "models/cpu/cpu_decoder.h"

namespace celer {

void CpuDecoder::MoeBesideDense(const LayerWeights& w, int64_t tokens) {
  const DecoderConfig& c = config_;
  const int64_t size = tokens * c.hidden;
  GateUp(w, tokens, {});
  float *const sum = work_.branch.data(), *const sparse = work_.sparse.data();
  Matmul({.x = work_.mid.data(), .tokens = tokens, .pool = pool_},
         {.w = w.dense.down, .out = sum, .out_stride = c.hidden}, added_);
  RmsNorm({.x = sum,
           .weight = w.dense_post_norm,
           .eps = c.norm_eps,
           .rows = tokens,
           .cols = c.hidden,
           .out = sum,
           .pool = pool_});
  std::fill_n(sparse, size, 0.0f);
  Moe(w, tokens, sparse);
  const auto add_normed = [&](const float* x, const float* weight, float* to) {
    AddNormed({.x = x,
               .weight = weight,
               .eps = c.norm_eps,
               .rows = tokens,
               .cols = c.hidden,
               .to = to,
               .pool = pool_});
  };
  add_normed(sparse, w.moe_post_norm, sum);
  add_normed(sum, w.ffn_post_norm, work_.x.data());
}

}  // namespace celer
