// The operators of latent attention in place of qkv and behind the attention.
#include <utility>

#include "kernels/llm/low_rank/adapted.h"
#include "models/cpu/cpu_decoder.h"

namespace celer {

void CpuDecoder::LatentQkv(const LayerWeights& w, const RaggedBatch& batch, const KvLayerView& kv) {
  const DecoderConfig& c = config_;
  const LatentConfig& dims = c.latent;
  celer::LatentQkv({.batch = batch,
                    .x = work_.x.data(),
                    .norm = w.attention_norm,
                    .eps = c.norm_eps,
                    .heads = c.heads,
                    .kv_rank = dims.kv_rank,
                    .nope_dim = dims.nope_dim,
                    .rope_dim = dims.rope_dim,
                    .q_a = w.latent.q_a,
                    .q_b = w.latent.q_b,
                    .kv_a = w.latent.kv_a,
                    .k_b = w.latent.k_b,
                    .q_a_bias = w.q_bias,
                    .kv_a_bias = w.k_bias,
                    .q_a_norm = w.latent.q_a_norm,
                    .kv_a_norm = w.latent.kv_a_norm,
                    .layout = c.rope.layout,
                    .rope_cos = work_.angles.cos.data(),
                    .rope_sin = work_.angles.sin.data(),
                    .kv = kv,
                    .q_low = work_.latent_q.data(),
                    .q_heads = work_.latent_q.data() + batch.token_count() * dims.q_rank,
                    .kv_row = work_.k.data(),
                    .q_out = work_.q.data(),
                    .pool = pool_},
                   added_);
}

// Queries are no longer needed, and give their room.
void CpuDecoder::LatentValues(const LayerWeights& w, int64_t tokens) {
  celer::LatentValues({.attention = work_.attention.data(),
                       .tokens = tokens,
                       .heads = config_.heads,
                       .row = config_.head_dim,
                       .v_b = w.latent.v_b,
                       .out = work_.q.data(),
                       .pool = pool_},
                      added_);
  std::swap(work_.q, work_.attention);
}

}  // namespace celer
