// Embeddings of each layer's own: made once for a batch, read by a gate at the end of each layer.
#include <algorithm>
#include <cmath>

#include "kernels/llm/low_rank/adapted.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/shared/activation/activation.h"
#include "kernels/shared/vec.h"
#include "models/cpu/cpu_decoder.h"

namespace celer {

// Half of them by the token, half a projection of its embedding, which x holds.
void CpuDecoder::EmbedPerLayer(const RaggedBatch& batch) {
  const DecoderConfig& c = config_;
  const int64_t tokens = batch.token_count(), width = c.layers * c.per_layer_dim;
  work_.known_tokens.assign(batch.tokens.begin(), batch.tokens.end());
  for (int32_t& token : work_.known_tokens)
    if (token >= c.per_layer_vocab) token = 0;
  celer::Embed({.tokens = work_.known_tokens,
                .table = weights_.per_layer_embedding,
                .scale = c.per_layer_scale,
                .out = work_.per_layer.data(),
                .pool = pool_});
  float* const projected = work_.projected.data();
  Matmul({.x = work_.x.data(), .tokens = tokens, .pool = pool_},
         {.w = weights_.per_layer_projection, .out = projected, .out_stride = width}, added_);
  const float scale = 1 / std::sqrt(static_cast<float>(c.hidden)), half = std::sqrt(0.5f);
  pool_->ParallelFor(tokens, /*grain=*/1, [&](int64_t begin, int64_t end) {
    float *const from = projected + begin * width, *const to = work_.per_layer.data() + begin * width;
    const int64_t count = (end - begin) * width;
    vec::Scale(scale, from, count);
    AddNormed({.x = from,
               .weight = weights_.per_layer_norm,
               .eps = c.norm_eps,
               .rows = (end - begin) * c.layers,
               .cols = c.per_layer_dim,
               .to = to});
    vec::Scale(half, to, count);
  });
}

void CpuDecoder::PerLayer(int64_t layer, const float* x, int64_t tokens, float* to, int64_t copies) {
  const DecoderConfig& c = config_;
  const LayerWeights& w = weights_.layers[layer];
  const int64_t dim = c.per_layer_dim, width = c.layers * dim;
  float *const gate = work_.projected.data(), *const branch = work_.branch.data();
  const MatmulOutput output = {.w = w.per_layer_gate, .out = gate, .out_stride = dim};
  Matmul({.x = x, .tokens = tokens, .pool = pool_}, output, added_);
  for (int64_t t = 0; t < tokens; ++t)
    ActivateMul(c.activation, gate + t * dim, work_.per_layer.data() + t * width + layer * dim,
                gate + t * dim, dim);
  Matmul({.x = gate, .tokens = tokens, .pool = pool_},
         {.w = w.per_layer_out, .out = branch, .out_stride = c.hidden}, added_);
  for (int64_t i = 0; i < copies; ++i)
    AddNormed({.x = branch,
               .weight = w.per_layer_norm,
               .eps = c.norm_eps,
               .rows = tokens,
               .cols = c.hidden,
               .to = to + i * tokens * c.hidden,
               .pool = pool_});
}

}  // namespace celer
