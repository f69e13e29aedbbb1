#include "models/load/layer_extras.h"

#include <fmt/format.h>

#include <cmath>

namespace celer {
namespace {

// Those of a layer stand behind its prefix.
struct ExtraNames {
  const char *per_layer_embedding, *per_layer_projection, *per_layer_projection_norm;
  const char *per_layer_gate, *per_layer_out, *per_layer_norm, *scale;
  const char *router_scale, *expert_scale, *moe_norm, *moe_post_norm, *dense_post_norm;
  const char *altup_router, *altup_router_norm, *altup_predict, *altup_correct, *altup_scale;
  const char *laurel_left, *laurel_right, *laurel_norm;
  const char *streams_in, *streams_out;  // "%" for the stream less one; else a stack of all
};

constexpr ExtraNames kHf = {
    .per_layer_embedding = "model.embed_tokens_per_layer.weight",
    .per_layer_projection = "model.per_layer_model_projection.weight",
    .per_layer_projection_norm = "model.per_layer_projection_norm.weight",
    .per_layer_gate = "per_layer_input_gate.weight",
    .per_layer_out = "per_layer_projection.weight",
    .per_layer_norm = "post_per_layer_input_norm.weight",
    .scale = "layer_scalar",
    .router_scale = "router.scale",
    .expert_scale = "router.per_expert_scale",
    .moe_norm = "pre_feedforward_layernorm_2.weight",
    .moe_post_norm = "post_feedforward_layernorm_2.weight",
    .dense_post_norm = "post_feedforward_layernorm_1.weight",
    .altup_router = "altup.modality_router.weight",
    .altup_router_norm = "altup.router_norm.weight",
    .altup_predict = "altup.prediction_coefs.weight",
    .altup_correct = "altup.correction_coefs.weight",
    .altup_scale = "altup.correct_output_scale",
    .laurel_left = "laurel.linear_left.weight",
    .laurel_right = "laurel.linear_right.weight",
    .laurel_norm = "laurel.post_laurel_norm.weight",
    .streams_in = "model.altup_projections.%.weight",
    .streams_out = "model.altup_unembed_projections.%.weight",
};

constexpr ExtraNames kGguf = {
    .per_layer_embedding = "per_layer_token_embd.weight",
    .per_layer_projection = "per_layer_model_proj.weight",
    .per_layer_projection_norm = "per_layer_proj_norm.weight",
    .per_layer_gate = "inp_gate.weight",
    .per_layer_out = "proj.weight",
    .per_layer_norm = "post_norm.weight",
    .scale = "layer_output_scale.weight",
    .router_scale = "ffn_gate_inp.scale",
    .expert_scale = "ffn_down_exps.scale",
    .moe_norm = "pre_ffw_norm_2.weight",
    .moe_post_norm = "post_ffw_norm_2.weight",
    .dense_post_norm = "post_ffw_norm_1.weight",
    .altup_router = "altup_router.weight",
    .altup_router_norm = "altup_router_norm.weight",
    .altup_predict = "altup_predict_coef.weight",
    .altup_correct = "altup_correct_coef.weight",
    .altup_scale = "altup_correct_scale.weight",
    .laurel_left = "laurel_l.weight",
    .laurel_right = "laurel_r.weight",
    .laurel_norm = "laurel_post_norm.weight",
    .streams_in = "altup_proj.weight",
    .streams_out = "altup_unembd_proj.weight",
};

const ExtraNames& NamesFor(bool gguf) {
  return gguf ? kGguf : kHf;
}

Status LoadBesideDense(const DecoderConfig& c, const ExtraNames& names, const std::string& prefix,
                       WeightReader& reader, LayerWeights* w) {
  CELER_ASSIGN(const float* const scale, reader.Vector(prefix + names.router_scale, c.hidden));
  for (int64_t i = 0; i < c.hidden; ++i)
    w->router_norm.push_back(scale[i] / std::sqrt(static_cast<float>(c.hidden)));
  CELER_ASSIGN(w->expert_scale, reader.Vector(prefix + names.expert_scale, c.moe.experts));
  CELER_ASSIGN(w->moe_norm, reader.Vector(prefix + names.moe_norm, c.hidden));
  CELER_ASSIGN(w->moe_post_norm, reader.Vector(prefix + names.moe_post_norm, c.hidden));
  CELER_ASSIGN(w->dense_post_norm, reader.Vector(prefix + names.dense_post_norm, c.hidden));
  return {};
}

Status LoadStreams(const DecoderConfig& c, const ExtraNames& names, const std::string& prefix,
                   WeightReader& reader, AltUpWeights* w) {
  const int64_t n = c.altup.streams;
  CELER_ASSIGN(w->router, reader.Matrix(prefix + names.altup_router, n, c.hidden));
  CELER_ASSIGN(w->router_norm, reader.Vector(prefix + names.altup_router_norm, c.hidden));
  CELER_ASSIGN(w->predict, reader.Matrix(prefix + names.altup_predict, n * n, n));
  CELER_ASSIGN(w->correct, reader.Matrix(prefix + names.altup_correct, n, n));
  CELER_ASSIGN(w->output_scale, reader.Vector(prefix + names.altup_scale, c.hidden));
  return {};
}

Result<std::vector<WeightView>> LoadProjections(const DecoderConfig& c, bool gguf, const std::string& name,
                                                WeightReader& reader) {
  const int64_t count = c.altup.streams - 1;
  if (gguf) return reader.Stack(name, count, c.hidden, c.hidden);
  std::vector<WeightView> projections;
  for (int64_t i = 0; i < count; ++i) {
    std::string one = name;
    one.replace(one.find('%'), 1, std::to_string(i));
    CELER_ASSIGN(const WeightView projection, reader.Matrix(one, c.hidden, c.hidden));
    projections.push_back(projection);
  }
  return projections;
}

}  // namespace

Status LoadLayerExtras(const DecoderConfig& c, bool gguf, const std::string& prefix, WeightReader& reader,
                       LayerWeights* w) {
  const ExtraNames& names = NamesFor(gguf);
  if (c.layer_scale) {
    CELER_ASSIGN(const float* const scale, reader.Vector(prefix + names.scale, 1, /*required=*/false));
    if (scale) w->scale = *scale;
  }
  if (c.per_layer_dim > 0) {
    CELER_ASSIGN(w->per_layer_gate, reader.Matrix(prefix + names.per_layer_gate, c.per_layer_dim, c.hidden));
    CELER_ASSIGN(w->per_layer_out, reader.Matrix(prefix + names.per_layer_out, c.hidden, c.per_layer_dim));
    CELER_ASSIGN(w->per_layer_norm, reader.Vector(prefix + names.per_layer_norm, c.hidden));
  }
  if (c.moe.beside_dense) CELER_RETURN_IF_ERROR(LoadBesideDense(c, names, prefix, reader, w));
  if (c.altup.streams > 0) CELER_RETURN_IF_ERROR(LoadStreams(c, names, prefix, reader, &w->altup));
  if (c.laurel_rank > 0) {
    CELER_ASSIGN(w->laurel_left, reader.Matrix(prefix + names.laurel_left, c.laurel_rank, c.hidden));
    CELER_ASSIGN(w->laurel_right, reader.Matrix(prefix + names.laurel_right, c.hidden, c.laurel_rank));
    CELER_ASSIGN(w->laurel_norm, reader.Vector(prefix + names.laurel_norm, c.hidden));
  }
  return {};
}

Status LoadModelExtras(const DecoderConfig& c, bool gguf, WeightReader& reader, DecoderWeights* w) {
  const ExtraNames& names = NamesFor(gguf);
  if (c.per_layer_dim > 0) {
    const int64_t width = c.layers * c.per_layer_dim;
    CELER_ASSIGN(w->per_layer_embedding, reader.Matrix(names.per_layer_embedding, c.per_layer_vocab, width));
    CELER_ASSIGN(w->per_layer_projection, reader.Matrix(names.per_layer_projection, width, c.hidden));
    CELER_ASSIGN(w->per_layer_norm, reader.Vector(names.per_layer_projection_norm, c.per_layer_dim));
  }
  if (c.altup.streams > 1) {
    CELER_ASSIGN(w->streams_in, LoadProjections(c, gguf, names.streams_in, reader));
    CELER_ASSIGN(w->streams_out, LoadProjections(c, gguf, names.streams_out, reader));
  }
  return {};
}

void AddExtraRoles(const DecoderConfig& c, bool gguf, WeightPlan::Roles* roles) {
  const ExtraNames& names = NamesFor(gguf);
  if (c.per_layer_dim > 0) (*roles)[names.per_layer_embedding] = WeightRole::kTable;
  for (int64_t i = 0; c.altup.streams > 0 && i < c.layers; ++i)
    for (const char* name : {names.altup_router, names.altup_predict, names.altup_correct})
      (*roles)[fmt::format("{}.{}.{}", gguf ? "blk" : "model.layers", i, name)] = WeightRole::kRouter;
}

const char* PerLayerEmbeddingName(bool gguf) {
  return NamesFor(gguf).per_layer_embedding;
}

}  // namespace celer
