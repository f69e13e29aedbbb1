// Between configurations and shapes for estimates (celer/limits.h).
#include <algorithm>

#include "models/config/decoder_config.h"
#include "models/recurrent_state.h"

namespace celer {
namespace {

double Times(int64_t a, int64_t b) {
  return static_cast<double>(a) * static_cast<double>(b);
}

void AddLatent(const DecoderConfig& c, LayerKind* k) {
  const LatentConfig& l = c.latent;
  const int64_t query = c.heads * (l.nope_dim + l.rope_dim), row = l.kv_rank + l.rope_dim;
  k->qkv = l.q_rank > 0 ? Times(c.hidden, l.q_rank) + Times(l.q_rank, query) : Times(c.hidden, query);
  k->qkv += Times(c.hidden, row) + Times(c.heads * l.kv_rank, l.nope_dim + l.value_dim);
  k->o = Times(c.heads * l.value_dim, c.hidden);
  k->norms += static_cast<double>(l.q_rank + l.kv_rank);
  k->query = static_cast<double>(query);
  k->kv = static_cast<double>(row);
  // A row is read by all heads as it is; in a prompt, whose rows become keys and values once, those are narrower.
  k->pair_macs = Times(c.heads, row + l.kv_rank);
  k->prompt_pair_macs = Times(c.heads, l.nope_dim + l.rope_dim + l.value_dim);
}

void AddAttention(const DecoderConfig& c, int64_t layer, LayerKind* k) {
  const int64_t q = c.heads * c.HeadDim(layer), kv = c.KvHeads(layer) * c.HeadDim(layer);
  const bool own = c.KvFrom(layer) == layer;
  const int64_t kv_rows = !own ? 0 : c.ValuesAreKeys(layer) ? kv : 2 * kv;
  const int64_t rows = (c.output_gate ? 2 : 1) * q + kv_rows;
  k->qkv = Times(c.hidden, rows) + static_cast<double>(c.qkv_bias ? rows : 0);
  k->o = Times(q, c.hidden) + static_cast<double>(c.o_bias ? c.hidden : 0);
  k->query = static_cast<double>(q);
  (own ? k->kv : k->borrowed_kv) = static_cast<double>(2 * kv);
  k->pair_macs = static_cast<double>(2 * q);
  k->norms += static_cast<double>(c.attention_sinks ? c.heads : 0);
  if (!c.qk_norm || !c.qk_norm_weights) return;
  const int64_t k_heads = own ? c.KvHeads(layer) : 0;
  k->norms += c.qk_norm_span == QkNormSpan::kHead ? static_cast<double>((own ? 2 : 1) * c.HeadDim(layer))
                                                  : Times(c.heads + k_heads, c.HeadDim(layer));
}

void AddRecurrent(const DecoderConfig& c, LayerKind* k) {
  const RecurrentConfig& r = c.recurrent;
  const int64_t keys = r.key_heads * r.key_dim, values = r.value_heads * r.value_dim;
  const bool mamba = r.kind == RecurrentKind::kMamba2;
  const int64_t rows = 2 * keys + 2 * values + (mamba ? 1 : 2) * r.value_heads;
  k->qkv = Times(c.hidden, rows) + Times(ConvChannels(r), r.conv_kernel);
  k->o = Times(values, c.hidden);
  k->norms += static_cast<double>(mamba ? values : r.value_dim);
  k->query = static_cast<double>(values);
  k->state = static_cast<double>(StateFloats(r));
  // Three passes over the matrices of a gated delta net; Mamba-2 adds to its state and reads it.
  k->state_macs =
      (mamba ? 2 : 3) * Times(r.value_heads * r.key_dim, r.value_dim) + Times(r.conv_kernel, ConvChannels(r));
}

void AddFfn(const DecoderConfig& c, int64_t layer, LayerKind* k) {
  const double gated = c.gated_mlp ? 2 : 1;
  const bool sparse = c.IsSparse(layer);
  if (!sparse || c.moe.beside_dense) {
    const int64_t columns = c.Intermediate(layer);
    k->up += gated * Times(c.hidden, columns) + (c.mlp_bias ? gated * static_cast<double>(columns) : 0);
    k->down += Times(c.hidden, columns) + static_cast<double>(c.mlp_bias ? c.hidden : 0);
  }
  if (!sparse) return;
  const MoeConfig& moe = c.moe;
  k->up += Times(c.hidden, moe.experts) + static_cast<double>(moe.router_bias ? moe.experts : 0) +
           gated * Times(c.hidden, moe.shared_intermediate);
  k->norms += static_cast<double>(moe.shared_gated && moe.shared_intermediate > 0 ? c.hidden : 0);
  k->down += Times(c.hidden, moe.shared_intermediate);
  k->expert_up = gated * Times(c.hidden, moe.intermediate) +
                 (moe.expert_bias ? gated * static_cast<double>(moe.intermediate) : 0);
  k->expert_down = Times(c.hidden, moe.intermediate) + static_cast<double>(moe.expert_bias ? c.hidden : 0);
}

LayerKind KindOf(const DecoderConfig& c, int64_t layer) {
  LayerKind k{.count = 1};
  const int64_t branches = (c.HasMixer(layer) ? 1 : 0) + (c.HasFfn(layer) ? 1 : 0);
  const int64_t places = c.parallel_block && !c.parallel_norms ? 1 : branches;
  k.norms = Times(c.hidden, (c.pre_norm ? places : 0) + (c.post_norm ? branches : 0));
  if (c.norm_bias) k.norms *= 2;
  if (c.HasMixer(layer)) {
    if (c.IsRecurrent(layer))
      AddRecurrent(c, &k);
    else if (c.IsLatent())
      AddLatent(c, &k);
    else
      AddAttention(c, layer, &k);
    if (!c.IsRecurrent(layer)) k.window = c.Window(layer);
  }
  if (c.HasFfn(layer)) AddFfn(c, layer, &k);
  k.up += Times(2 * c.hidden, c.per_layer_dim + c.laurel_rank);
  return k;
}

}  // namespace

DecoderConfig FromLlmShape(const LlmShape& shape) {
  DecoderConfig c;
  static_cast<ModelShape&>(c) = shape;
  static_cast<ExpertShape&>(c.moe) = shape;
  c.family = c.architecture = "llama";
  c.rope.dim = shape.head_dim;
  c.max_positions = 131072;
  if (shape.experts > 0) {
    c.moe.intermediate = shape.intermediate;
    c.moe.sparse_layer.assign(shape.layers, true);
  }
  return c;
}

LlmShape ToLlmShape(const DecoderConfig& c, const std::string& name) {
  LlmShape shape{c, c.moe, name};
  if (c.moe.experts > 0) shape.intermediate = c.moe.intermediate;
  const std::vector<LayerKind> plain = KindsOf(shape);
  std::vector<LayerKind> kinds;
  for (int64_t i = 0; i < c.layers; ++i) {
    LayerKind kind = KindOf(c, i);
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const LayerKind& other) {
      kind.count = other.count;
      return kind == other;
    });
    if (same != kinds.end()) {
      ++same->count;
      continue;
    }
    kind.count = 1;
    kinds.push_back(kind);
  }
  if (kinds != plain) shape.kinds = std::move(kinds);
  return shape;
}

}  // namespace celer
