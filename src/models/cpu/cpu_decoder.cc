#include "models/cpu/cpu_decoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "base/check.h"
#include "kernels/llm/attention/attention.h"
#include "kernels/llm/embed/embed.h"
#include "kernels/llm/gate_up/gate_up.h"
#include "kernels/llm/logits/logits.h"
#include "kernels/llm/low_rank/adapted.h"
#include "kernels/llm/moe/moe.h"
#include "kernels/llm/output_gate/output_gate.h"
#include "kernels/llm/qkv/qkv.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/network/rows/rows.h"
#include "kernels/shared/vec.h"
#include "models/recurrent_state.h"

namespace celer {
namespace {

// The number below which a share of normally distributed numbers lies.
double NormalQuantile(double share) {
  double low = -10, high = 10;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < share ? low : high) = middle;
  }
  return low;
}

QkNormForm NormFormOf(const DecoderConfig& c) {
  QkNormForm form = {.after_rope = c.qk_norm_after_rope, .layer_norm = c.qk_norm_kind == NormKind::kLayer};
  if (c.qk_norm_span == QkNormSpan::kRow) form.span = QkNormForm::Span::kRow;
  if (c.qk_norm_span == QkNormSpan::kOwn) form.span = QkNormForm::Span::kOwn;
  return form;
}

// 2^(-most i / n) for i = 1 to n, where n is a power of two; of more heads those between these, each second one.
std::vector<float> AlibiSlopes(int64_t heads, double most) {
  int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  std::vector<float> slopes;
  for (int64_t i = 0; i < heads; ++i) {
    const double step = i < n ? static_cast<double>(i + 1) : static_cast<double>(i - n) + 0.5;
    slopes.push_back(static_cast<float>(std::exp2(-most * step / static_cast<double>(n))));
  }
  return slopes;
}

}  // namespace

CpuDecoder::CpuDecoder(const Model& model, ThreadPool& pool)
    : CpuDecoder(model.config(), model.weights(), pool) {
  lora_.emplace(model);
}

CpuDecoder::CpuDecoder(const DecoderConfig& config, const DecoderWeights& weights, ThreadPool& pool)
    : config_(config), weights_(weights), pool_(&pool), rope_(config.rope) {
  if (config_.local_rope) local_rope_.emplace(*config_.local_rope);
  ones_.assign(config_.MaxHeadDim(), 1.0f);
  cut_.resize(config_.layers);
  for (size_t i = 0; i < config_.gate_sparsity.size(); ++i)
    if (config_.gate_sparsity[i] > 0) cut_[i] = static_cast<float>(NormalQuantile(config_.gate_sparsity[i]));
  if (config_.alibi_max > 0) alibi_slopes_ = AlibiSlopes(config_.heads, config_.alibi_max);
}

void CpuDecoder::Forward(const RaggedBatch& batch, std::span<const KvLayerView> kv, float* logits,
                         const HiddenRows& hidden, const States& states, Lora lora) {
  const int64_t tokens = batch.token_count();
  added_ = lora.empty() ? LowRankBatch() : lora_->Prepare(lora, batch.seq_start);
  EnsureWorkspace(tokens);
  OpClock clock(profile_);
  if (!input_) clock.Begin(Op::kEmbed);  // else whoever makes the input times that
  Embed(batch);
  Watch(-1, tokens);
  for (int64_t i = 0; i < config_.layers; ++i) {
    if (group_ && !group_->communicator->status()) return;
    const LayerWeights& w = weights_.layers[i];
    const KvLayerView& layer_kv = kv[i];
    if (config_.altup.streams > 0) Predict(w, tokens);
    if (config_.laurel_rank > 0) Laurel(w, tokens);
    if (config_.IsRecurrent(i)) {
      clock.Begin(Op::kRecurrent);
      CELER_CHECK_EQ(std::ssize(states.slots), batch.seqs());
      Recurrent(w, batch,
                {.data = states.layers[i],
                 .stride = states.stride,
                 .slots = states.slots,
                 .draft_slots = states.draft_slots,
                 .certain = states.certain});
    } else if (config_.HasMixer(i)) {
      clock.Begin(Op::kQkv);
      config_.IsLatent() ? LatentQkv(w, batch, layer_kv) : Qkv(i, batch, layer_kv);
      clock.Begin(Op::kAttention);
      Attention(batch, layer_kv, config_.Window(i), w.sinks);
      if (config_.IsLatent()) LatentValues(w, tokens);
    }
    if (!config_.parallel_block && config_.HasMixer(i)) {
      clock.Begin(Op::kOutput);
      Output(w, tokens);
    }
    if (config_.laurel_rank > 0) AddLaurel(tokens);
    if (config_.IsSparse(i)) {
      clock.Begin(Op::kMoe);
      config_.moe.beside_dense ? MoeBesideDense(w, tokens) : Moe(w, tokens);
    } else if (config_.HasFfn(i)) {
      clock.Begin(Op::kGateUp);
      GateUp(w, tokens, cut_[i]);
      if (config_.parallel_block) {  // it has read the residual before attention adds to it
        clock.Begin(Op::kOutput);
        Output(w, tokens);
      }
      clock.Begin(Op::kDown);
      Down(w, tokens);
    }
    FinishLayer(i, tokens);
    Watch(i, tokens);
  }
  if (config_.altup.streams > 0) JoinStreams(tokens);
  clock.End();
  if (!hidden.tokens.empty()) Hidden(hidden);
  if (batch.logit_rows.empty()) return;
  clock.Begin(Op::kLogits);
  Logits(batch, logits);
}

void CpuDecoder::FinishLayer(int64_t layer, int64_t tokens) {
  float* const x = work_.x.data();
  if (config_.altup.streams > 0)
    Correct(layer, tokens);
  else if (config_.per_layer_dim > 0)
    PerLayer(layer, x, tokens, x, 1);
  if (config_.layer_scale) vec::Scale(weights_.layers[layer].scale, x, tokens * config_.hidden);
}

void CpuDecoder::Embed(const RaggedBatch& batch) {
  if (input_)
    input_(batch, work_.x.data());
  else
    EmbedTokens(batch);
  if (config_.altup.streams > 0) SplitStreams(batch.token_count());
  FillAngles(config_.rope, rope_, batch, &work_.angles);
  if (local_rope_) FillAngles(*config_.local_rope, *local_rope_, batch, &work_.local_angles);
  if (config_.query_scale.beta != 0) FillQueryScale(batch);
}

void CpuDecoder::EmbedTokens(const RaggedBatch& batch) {
  const bool projected = config_.embedding_dim > 0;
  float* const embedded = projected ? work_.narrow.data() : work_.x.data();
  celer::Embed({.tokens = group_ ? OwnTokens(batch.tokens) : batch.tokens,
                .table = weights_.embedding,
                .scale = config_.embedding_scale,
                .out = embedded,
                .pool = pool_},
               added_);
  if (group_) JoinEmbeddings(batch.tokens, projected ? config_.embedding_dim : config_.hidden, embedded);
  if (projected)
    Matmul({.x = embedded, .tokens = batch.token_count(), .pool = pool_},
           {.w = weights_.project_in, .out = work_.x.data(), .out_stride = config_.hidden}, added_);
  if (weights_.positions)
    AddPositions({.positions = batch.positions,
                  .offset = config_.position_offset,
                  .table = weights_.positions,
                  .x = work_.x.data(),
                  .pool = pool_});
  if (weights_.embedding_norm)
    LayerNorm({.x = work_.x.data(),
               .scale = weights_.embedding_norm,
               .shift = weights_.embedding_norm_bias,
               .eps = config_.norm_eps,
               .out = work_.x.data(),
               .rows = batch.token_count(),
               .cols = config_.hidden,
               .pool = pool_});
  if (config_.per_layer_dim > 0) EmbedPerLayer(batch);
}

void CpuDecoder::FillAngles(const RopeConfig& config, const RopeTable& table, const RaggedBatch& batch,
                            Angles* angles) {
  const auto size = static_cast<size_t>(batch.token_count() * config.dim / 2);
  for (auto* v : {&angles->cos, &angles->sin})
    if (v->size() < size) v->resize(size);
  table.Fill(batch.positions, RopeLengths(config, batch), angles->cos.data(), angles->sin.data());
}

void CpuDecoder::FillQueryScale(const RaggedBatch& batch) {
  work_.query_scale.clear();
  for (const int32_t position : batch.positions)
    work_.query_scale.push_back(QueryFactor(config_.query_scale, position));
}

void CpuDecoder::Qkv(int64_t layer, const RaggedBatch& batch, const KvLayerView& kv) {
  const DecoderConfig& c = config_;
  const LayerWeights& w = weights_.layers[layer];
  const bool local = local_rope_ && c.Window(layer) > 0;
  const RopeConfig& rope = local ? *c.local_rope : c.rope;
  const Angles& angles = local ? work_.local_angles : work_.angles;
  const bool scaled = c.query_scale.beta != 0 && !(c.query_scale.without_rope && c.Rotates(layer));
  const float* const plain_norm = c.qk_norm && c.Rotates(layer) ? ones_.data() : nullptr;
  celer::Qkv({.batch = batch,
              .x = work_.x.data(),
              .norm = w.attention_norm,
              .layer_norm = c.norm == NormKind::kLayer,
              .norm_bias = w.attention_norm_bias,
              .eps = c.norm_eps,
              .q = w.q,
              .k = w.k,
              .v = w.v,
              .q_bias = w.q_bias,
              .k_bias = w.k_bias,
              .v_bias = w.v_bias,
              .q_norm = c.qk_norm_weights ? w.q_norm : plain_norm,
              .k_norm = c.qk_norm_weights ? w.k_norm : plain_norm,
              .q_norm_bias = w.q_norm_bias,
              .k_norm_bias = w.k_norm_bias,
              .v_norm = c.v_norm ? ones_.data() : nullptr,
              .norm_form = NormFormOf(c),
              .layout = rope.layout,
              .rope_cos = c.Rotates(layer) ? angles.cos.data() : nullptr,
              .rope_sin = angles.sin.data(),
              .rope_dim = rope.dim,
              .q_scale = scaled ? work_.query_scale.data() : nullptr,
              .clip = c.qkv_clip,
              .heads = c.heads,
              .kv = kv,
              .k_out = work_.k.data(),
              .v_out = work_.v.data(),
              .q_out = work_.q.data(),
              .gated_out = c.output_gate ? work_.gated.data() : nullptr,
              .pool = pool_},
             added_);
}

void CpuDecoder::Attention(const RaggedBatch& batch, const KvLayerView& kv, int64_t window,
                           const float* sinks) {
  const float usual = 1.0f / std::sqrt(static_cast<float>(kv.head_dim));
  celer::Attention({.batch = batch,
                    .kv = kv,
                    .q = work_.q.data(),
                    .heads = config_.heads,
                    .scale = config_.attention_scale != 0 ? config_.attention_scale : usual,
                    .window = window,
                    .chunked = config_.chunked_window,
                    .softcap = config_.attention_softcap,
                    .sinks = sinks,
                    .slopes = alibi_slopes_.empty() ? nullptr : alibi_slopes_.data(),
                    .rounded_slopes = config_.alibi_rounded,
                    .out = work_.attention.data(),
                    .pool = pool_});
  if (!config_.output_gate) return;
  const int64_t dim = config_.head_dim;
  OutputGate({.x = work_.attention.data(),
              .gate = work_.gated.data() + dim,
              .stride = 2 * dim,
              .heads = batch.token_count() * config_.heads,
              .head_dim = dim,
              .pool = pool_});
}

void CpuDecoder::AddBranch(float* x, const WeightView& w, const float* bias, const float* post_norm,
                           const float* post_norm_bias, int64_t tokens) {
  // That of the input is that of the output, apart from the bias, which the loader has scaled.
  if (config_.residual_scale != 1)
    for (int64_t i = 0; i < tokens * w.cols; ++i) x[i] *= config_.residual_scale;
  float *const to = work_.x.data(), *const branch = work_.branch.data();
  const MatmulArgs product = {.x = x, .tokens = tokens, .pool = pool_};
  const bool normed = post_norm && !config_.residual_norm;
  if (normed || group_) {
    Matmul(product, {.w = w, .bias = bias, .out = branch, .out_stride = config_.hidden}, added_);
    if (group_) SumOverRanks(branch, tokens * config_.hidden);
  } else {
    Matmul(product, {.w = w, .bias = bias, .residual = to, .out = to, .out_stride = config_.hidden}, added_);
  }
  if (normed)
    AddNormed({.x = branch,
               .weight = post_norm,
               .eps = config_.norm_eps,
               .rows = tokens,
               .cols = config_.hidden,
               .to = to,
               .pool = pool_});
  else if (group_)
    vec::Axpy(1.0f, branch, to, tokens * config_.hidden);
  if (config_.residual_norm)
    LayerNorm({.x = to,
               .scale = post_norm,
               .shift = post_norm_bias,
               .eps = config_.norm_eps,
               .out = to,
               .rows = tokens,
               .cols = config_.hidden,
               .pool = pool_});
}

void CpuDecoder::Output(const LayerWeights& w, int64_t tokens) {
  AddBranch(work_.attention.data(), w.recurrent.out ? w.recurrent.out : w.o, w.o_bias, w.attention_post_norm,
            w.attention_post_norm_bias, tokens);
}

void CpuDecoder::GateUp(const LayerWeights& w, int64_t tokens, std::optional<float> cut) {
  celer::GateUp({.x = work_.x.data(),
                 .tokens = tokens,
                 .norm = w.ffn_norm,
                 .layer_norm = config_.norm == NormKind::kLayer,
                 .norm_bias = w.ffn_norm_bias,
                 .eps = config_.norm_eps,
                 .gate = w.dense.gate,
                 .up = w.dense.up,
                 .gate_bias = w.gate_bias,
                 .up_bias = w.up_bias,
                 .activation = config_.activation,
                 .swiglu_limit = config_.swiglu_limit,
                 .cut = cut,
                 .up_out = work_.up.data(),
                 .out = work_.mid.data(),
                 .pool = pool_},
                added_);
}

void CpuDecoder::Down(const LayerWeights& w, int64_t tokens) {
  AddBranch(work_.mid.data(), w.dense.down, w.down_bias, w.ffn_post_norm, w.ffn_post_norm_bias, tokens);
}

void CpuDecoder::Moe(const LayerWeights& w, int64_t tokens, float* to) {
  const MoeConfig& moe = config_.moe;
  const int64_t size = tokens * config_.hidden;
  if (group_) {
    to = work_.branch.data();
    std::fill_n(to, size, 0.0f);
  }
  celer::Moe({.x = work_.x.data(),
              .to = to,
              .tokens = tokens,
              .norm = w.moe_norm ? w.moe_norm : w.ffn_norm,
              .layer_norm = config_.norm == NormKind::kLayer,
              .norm_bias = w.ffn_norm_bias,
              .router_norm = w.router_norm.empty() ? nullptr : w.router_norm.data(),
              .weight_on_input = moe.weight_on_input,
              .eps = config_.norm_eps,
              .router = w.router,
              .experts = w.experts,
              .experts_per_token = moe.experts_per_token,
              .form = {.sigmoid = moe.score == RouterScore::kSigmoid,
                       .sparse_mixer = moe.score == RouterScore::kSparseMixer,
                       .jitter = moe.jitter,
                       .bias = w.router_bias,
                       .choice_bias = w.choice_bias,
                       .groups = moe.groups,
                       .groups_used = moe.groups_used,
                       .group_by_best_two = moe.group_by_best_two,
                       .normalize = moe.normalize_top,
                       .normalize_eps = moe.normalize_eps,
                       .normalize_floor = moe.normalize_floor,
                       .scale = moe.routed_scale,
                       .expert_scale = w.expert_scale},
              .shared = moe.shared_intermediate > 0 ? &w.shared : nullptr,
              .shared_gate = w.shared_gate,
              .activation = config_.activation,
              .swiglu_limit = config_.swiglu_limit,
              .residual_scale = config_.residual_scale,
              .pool = pool_},
             added_);
  if (!group_) return;
  SumOverRanks(to, size);
  vec::Axpy(1.0f, to, work_.x.data(), size);
}

void CpuDecoder::EmbedAlone(const RaggedBatch& batch, float* out) {
  EnsureWorkspace(batch.token_count());
  added_ = {};
  EmbedTokens(batch);
  std::copy_n(work_.x.data(), batch.token_count() * config_.hidden, out);
}

void CpuDecoder::AddExperts(int64_t layer, float* x, int64_t tokens) {
  EnsureWorkspace(tokens);
  const int64_t values = tokens * config_.hidden;
  std::copy_n(x, values, work_.x.data());
  added_ = {};
  Moe(weights_.layers[layer], tokens);
  std::copy_n(work_.x.data(), values, x);
}

void CpuDecoder::Logits(const RaggedBatch& batch, float* logits) {
  const DecoderConfig& c = config_;
  if (group_) {
    const size_t size = batch.logit_rows.size() * static_cast<size_t>(c.vocab);
    if (work_.part_logits.size() < size) work_.part_logits.resize(size);
  }
  const float *const x = work_.x.data(), *read = x, *norm = weights_.norm;
  std::span<const int32_t> rows = batch.logit_rows;
  LowRankBatch added = added_;
  if (c.embedding_dim > 0) {
    ProjectOut(rows);
    read = work_.narrow.data();
    norm = nullptr;
    rows = work_.all_rows;
    work_.mix_of.clear();
    for (const int32_t row : batch.logit_rows)
      if (!added.empty()) work_.mix_of.push_back(added.mix_of[row]);
    added.mix_of = work_.mix_of;
  }
  celer::Logits({.x = read,
                 .rows = rows,
                 .norm = norm,
                 .layer_norm = c.norm == NormKind::kLayer,
                 .norm_bias = weights_.norm_bias,
                 .eps = c.norm_eps,
                 .head = weights_.head,
                 .bias = weights_.head_bias,
                 .scale = c.logit_scale,
                 .softcap = c.logit_softcap,
                 .out = group_ ? work_.part_logits.data() : logits,
                 .pool = pool_},
                added);
  if (group_) JoinLogits(std::ssize(batch.logit_rows), logits);
  if (!logits) return;
  // Products with integers need not keep a NaN, and numbers whose squares overflow are zeros to a norm: such
  // rows are not left to them.
  for (size_t r = 0; r < batch.logit_rows.size(); ++r) {
    if (!(InverseRms(x + batch.logit_rows[r] * c.hidden, c.hidden, c.norm_eps) > 0))
      std::fill_n(logits + static_cast<int64_t>(r) * Vocabulary(), Vocabulary(),
                  std::numeric_limits<float>::quiet_NaN());
  }
}

void CpuDecoder::ProjectOut(std::span<const int32_t> rows) {
  const auto count = std::ssize(rows);
  Matmul({.x = work_.x.data(),
          .x_rows = rows.data(),
          .tokens = count,
          .norm = weights_.norm,
          .layer_norm = config_.norm == NormKind::kLayer,
          .norm_bias = weights_.norm_bias,
          .eps = config_.norm_eps,
          .pool = pool_},
         {.w = weights_.project_out, .out = work_.narrow.data(), .out_stride = config_.embedding_dim},
         added_);
  work_.all_rows.resize(count);
  std::iota(work_.all_rows.begin(), work_.all_rows.end(), 0);
}

void CpuDecoder::Hidden(const HiddenRows& rows) {
  const int64_t width = config_.hidden;
  pool_->ParallelFor(std::ssize(rows.tokens), /*grain=*/8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const x = work_.x.data() + rows.tokens[r] * width;
      const float scale = InverseRms(x, width, config_.norm_eps);
      float* const out = rows.out + r * width;
      if (!(scale > 0))
        std::fill_n(out, width, std::numeric_limits<float>::quiet_NaN());
      else if (!weights_.norm)
        std::copy_n(x, width, out);
      else if (config_.norm == NormKind::kLayer)
        LayerNorm({.x = x,
                   .scale = weights_.norm,
                   .shift = weights_.norm_bias,
                   .eps = config_.norm_eps,
                   .out = out,
                   .rows = 1,
                   .cols = width});
      else
        ScaleByWeight(x, scale, weights_.norm, width, out);
    }
  });
}

void CpuDecoder::Watch(int64_t layer, int64_t tokens) const {
  if (watch_) watch_(layer, {work_.x.data(), static_cast<size_t>(tokens * config_.hidden)});
}

void CpuDecoder::EnsureWorkspace(int64_t tokens) {
  const auto grow = [](AlignedVector<float>& v, int64_t n) {
    if (static_cast<int64_t>(v.size()) < n) v.resize(n);
  };
  const DecoderConfig& c = config_;
  grow(work_.x, tokens * c.hidden);
  const int64_t head_dim = std::max(c.MaxHeadDim(), c.latent.value_dim);
  for (auto* v : {&work_.q, &work_.attention}) grow(*v, tokens * c.heads * head_dim);
  for (auto* v : {&work_.k, &work_.v}) grow(*v, tokens * c.MaxKvWidth());
  for (auto* v : {&work_.up, &work_.mid}) grow(*v, tokens * c.MaxIntermediate());
  const LatentConfig& latent = c.latent;
  if (c.IsLatent())
    grow(work_.latent_q, tokens * (latent.q_rank + c.heads * (latent.nope_dim + latent.rope_dim)));
  if (c.output_gate) grow(work_.gated, tokens * c.heads * 2 * c.head_dim);
  if (const RecurrentConfig& r = c.recurrent; !r.layer.empty()) {
    grow(work_.mixed, tokens * ConvChannels(r));
    for (auto* v : {&work_.z, &work_.attention}) grow(*v, tokens * r.value_heads * r.value_dim);
    for (auto* v : {&work_.a, &work_.b}) grow(*v, tokens * r.value_heads);
  }
  if (c.post_norm || group_) grow(work_.branch, tokens * c.hidden);
  if (c.moe.beside_dense) grow(work_.sparse, tokens * c.hidden);
  for (auto* v : {&work_.per_layer, &work_.projected}) grow(*v, tokens * c.layers * c.per_layer_dim);
  if (c.laurel_rank > 0) grow(work_.laurel, tokens * c.hidden);
  grow(work_.laurel_low, tokens * c.laurel_rank);
  const int64_t streams = c.altup.streams;
  grow(work_.streams, streams * tokens * c.hidden);
  grow(work_.modes, tokens * streams);
  grow(work_.coefficients, tokens * streams * streams);
  grow(work_.narrow, tokens * c.embedding_dim);
}

std::span<const int32_t> CpuDecoder::RopeLengths(const RopeConfig& rope, const RaggedBatch& batch) {
  if (!rope.DependsOnLength()) return {};
  std::vector<int32_t>& out = work_.lengths;
  out.clear();
  for (int64_t s = 0; s < batch.seqs(); ++s) {
    const auto begin = batch.seq_start[s], end = batch.seq_start[s + 1];
    for (int32_t t = begin; t < end; ++t) {
      const int32_t last = batch.positions[batch.prompt_lengths.empty() ? end - 1 : t];
      const int32_t prompt = batch.prompt_lengths.empty() ? 0 : batch.prompt_lengths[s];
      out.push_back(std::max(last + 1, prompt));
    }
  }
  return out;
}

}  // namespace celer
