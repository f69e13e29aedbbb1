#include "models/decoder.h"

#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/embed/embed.h"
#include "kernels/gate_up/gate_up.h"
#include "kernels/logits/logits.h"
#include "kernels/matmul/matmul.h"
#include "kernels/qkv/qkv.h"

namespace celer {
namespace {

int64_t Bytes(const ExpertWeights& expert) {
  return expert.gate.bytes() + expert.up.bytes() + expert.down.bytes();
}

}  // namespace

void Decoder::EnsureWorkspace(int64_t tokens) {
  const auto grow = [](AlignedVector<float>& v, int64_t n) {
    if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<size_t>(n));
  };
  const DecoderConfig& c = config_;
  grow(work_.x, tokens * c.hidden);
  for (auto* v : {&work_.q, &work_.attention}) grow(*v, tokens * c.heads * c.head_dim);
  for (auto* v : {&work_.k, &work_.v}) grow(*v, tokens * c.kv_heads * c.head_dim);
  for (auto* v : {&work_.up, &work_.mid}) grow(*v, tokens * c.intermediate);
  for (auto* v : {&work_.cos, &work_.sin}) grow(*v, tokens * c.rope.dim / 2);
}

void Decoder::Forward(const RaggedBatch& batch, std::span<const KvLayerView> kv, float* logits) {
  const DecoderConfig& c = config_;
  const int64_t tokens = batch.token_count();
  EnsureWorkspace(tokens);
  float* x = work_.x.data();

  OpClock clock(profile_);
  clock.Begin(Op::kEmbed);
  Embed({.tokens = batch.tokens, .table = weights_.embedding, .out = x, .pool = pool_});
  rope_->Fill(batch.positions, work_.cos.data(), work_.sin.data());

  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(i)];
    const KvLayerView& layer_kv = kv[static_cast<size_t>(i)];

    clock.Begin(Op::kQkv);
    Qkv({.batch = batch,
         .x = x,
         .norm = w.attention_norm,
         .eps = c.norm_eps,
         .q = w.q,
         .k = w.k,
         .v = w.v,
         .q_bias = w.q_bias,
         .k_bias = w.k_bias,
         .v_bias = w.v_bias,
         .q_norm = w.q_norm,
         .k_norm = w.k_norm,
         .layout = c.rope.layout,
         .rope_cos = work_.cos.data(),
         .rope_sin = work_.sin.data(),
         .rope_dim = c.rope.dim,
         .heads = c.heads,
         .kv = layer_kv,
         .k_out = work_.k.data(),
         .v_out = work_.v.data(),
         .q_out = work_.q.data(),
         .pool = pool_});

    clock.Begin(Op::kAttention);
    Attention({.batch = batch,
               .kv = layer_kv,
               .q = work_.q.data(),
               .heads = c.heads,
               .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
               .window = c.Window(i),
               .out = work_.attention.data(),
               .pool = pool_});

    clock.Begin(Op::kOutput);
    Matmul({.x = work_.attention.data(), .tokens = tokens, .pool = pool_},
           {.w = w.o, .residual = x, .out = x, .out_stride = c.hidden});

    if (c.IsSparse(i)) {
      clock.Begin(Op::kMoe);
      Moe({.x = x,
           .tokens = tokens,
           .norm = w.ffn_norm,
           .eps = c.norm_eps,
           .router = w.router,
           .experts = w.experts,
           .experts_per_token = c.moe.per_token,
           .normalize_top = c.moe.normalize_top,
           .shared = c.moe.shared_intermediate > 0 ? &w.shared : nullptr,
           .shared_gate = w.shared_gate,
           .activation = c.activation,
           .pool = pool_});
      continue;
    }
    clock.Begin(Op::kGateUp);
    GateUp({.x = x,
            .tokens = tokens,
            .norm = w.ffn_norm,
            .eps = c.norm_eps,
            .gate = w.dense.gate,
            .up = w.dense.up,
            .activation = c.activation,
            .up_out = work_.up.data(),
            .out = work_.mid.data(),
            .pool = pool_});

    clock.Begin(Op::kDown);
    Matmul({.x = work_.mid.data(), .tokens = tokens, .pool = pool_},
           {.w = w.dense.down, .residual = x, .out = x, .out_stride = c.hidden});
  }

  clock.End();
  if (batch.logit_rows.empty()) return;
  clock.Begin(Op::kLogits);
  Logits({.x = x,
          .rows = batch.logit_rows,
          .norm = weights_.norm,
          .eps = c.norm_eps,
          .head = weights_.head,
          .out = logits,
          .pool = pool_});
}

int64_t Decoder::active_bytes() const {
  int64_t total = weights_.head.bytes();
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const LayerWeights& w = weights_.layers[i];
    total += w.q.bytes() + w.k.bytes() + w.v.bytes() + w.o.bytes();
    if (config_.IsSparse(static_cast<int64_t>(i)))
      total += w.router.bytes() + config_.moe.per_token * Bytes(w.experts[0]) + Bytes(w.shared);
    else
      total += Bytes(w.dense);
  }
  return total;
}

}  // namespace celer
