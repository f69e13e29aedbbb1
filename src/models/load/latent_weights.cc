#include "models/load/latent_weights.h"

namespace celer {
namespace {

struct LatentNames {
  const char *q, *q_a, *q_b, *kv_a, *q_a_bias, *kv_a_bias, *q_a_norm, *kv_a_norm;
  const char* kv_b;       // of each head: its keys' rows, then its values'
  const char *k_b, *v_b;  // instead, in newer GGUF files: the keys' turned
};

constexpr LatentNames kHf = {"self_attn.q_proj.weight",
                             "self_attn.q_a_proj.weight",
                             "self_attn.q_b_proj.weight",
                             "self_attn.kv_a_proj_with_mqa.weight",
                             "self_attn.q_a_proj.bias",
                             "self_attn.kv_a_proj_with_mqa.bias",
                             "self_attn.q_a_layernorm.weight",
                             "self_attn.kv_a_layernorm.weight",
                             "self_attn.kv_b_proj.weight",
                             nullptr,
                             nullptr};
constexpr LatentNames kGguf = {"attn_q.weight",        "attn_q_a.weight",       "attn_q_b.weight",
                               "attn_kv_a_mqa.weight", "attn_q_a.bias",         "attn_kv_a_mqa.bias",
                               "attn_q_a_norm.weight", "attn_kv_a_norm.weight", "attn_kv_b.weight",
                               "attn_k_b.weight",      "attn_v_b.weight"};

const LatentNames& NamesFor(bool gguf) {
  return gguf ? kGguf : kHf;
}

Status LoadQueries(const DecoderConfig& c, const LatentNames& names, const std::string& prefix,
                   WeightReader& reader, LayerWeights* layer) {
  const LatentConfig& dims = c.latent;
  LatentWeights& w = layer->latent;
  const int64_t rows = c.heads * (dims.nope_dim + dims.rope_dim);
  if (dims.q_rank == 0) {
    CELER_ASSIGN(w.q_b, reader.Matrix(prefix + names.q, rows, c.hidden));
    return {};
  }
  CELER_ASSIGN(w.q_a, reader.Matrix(prefix + names.q_a, dims.q_rank, c.hidden));
  CELER_ASSIGN(w.q_a_norm, reader.Vector(prefix + names.q_a_norm, dims.q_rank));
  CELER_ASSIGN(w.q_b, reader.Matrix(prefix + names.q_b, rows, dims.q_rank));
  if (c.qkv_bias) {
    CELER_ASSIGN(layer->q_bias, reader.Vector(prefix + names.q_a_bias, dims.q_rank));
  }
  return {};
}

// The up-projections of keys and values.
Status LoadHeads(const DecoderConfig& c, bool split, const LatentNames& names, const std::string& prefix,
                 WeightReader& reader, LatentWeights* w) {
  const LatentConfig& dims = c.latent;
  if (split) {
    CELER_ASSIGN(w->k_b, reader.Heads(prefix + names.k_b, c.heads, dims.kv_rank, dims.nope_dim,
                                      {.count = dims.kv_rank}));
    CELER_ASSIGN(w->v_b, reader.Heads(prefix + names.v_b, c.heads, dims.value_dim, dims.kv_rank,
                                      {.count = dims.value_dim}));
    return {};
  }
  const std::string name = prefix + names.kv_b;
  const int64_t rows = dims.nope_dim + dims.value_dim;
  CELER_ASSIGN(w->k_b,
               reader.Heads(name, c.heads, rows, dims.kv_rank, {.count = dims.nope_dim, .turned = true}));
  CELER_ASSIGN(w->v_b, reader.Heads(name, c.heads, rows, dims.kv_rank,
                                    {.begin = dims.nope_dim, .count = dims.value_dim}));
  return {};
}

}  // namespace

Status LoadLatent(const DecoderConfig& config, bool gguf, const std::string& prefix, WeightReader& reader,
                  LayerWeights* layer) {
  const LatentNames& names = NamesFor(gguf);
  const LatentConfig& dims = config.latent;
  const int64_t row = dims.kv_rank + dims.rope_dim;
  CELER_RETURN_IF_ERROR(LoadQueries(config, names, prefix, reader, layer));
  CELER_ASSIGN(layer->latent.kv_a, reader.Matrix(prefix + names.kv_a, row, config.hidden));
  CELER_ASSIGN(layer->latent.kv_a_norm, reader.Vector(prefix + names.kv_a_norm, dims.kv_rank));
  if (config.qkv_bias) {
    CELER_ASSIGN(layer->k_bias, reader.Vector(prefix + names.kv_a_bias, row));
  }
  const bool split = gguf && reader.Has(prefix + names.k_b);
  return LoadHeads(config, split, names, prefix, reader, &layer->latent);
}

void AddLatentRoles(const std::string& prefix, bool gguf, WeightPlan::Roles* roles) {
  const LatentNames& names = NamesFor(gguf);
  for (const char* name : {names.kv_b, names.k_b, names.v_b})
    if (name) (*roles)[prefix + name] = WeightRole::kHeads;
}

}  // namespace celer
