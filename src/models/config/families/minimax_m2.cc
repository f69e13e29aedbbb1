// MiniMax M2: qk-norm over whole rows, partial rope, a sigmoid router with a bias for choosing.
#include "models/config/families/families.h"

namespace celer::families {
namespace {

void MiniMaxArchitecture(DecoderConfig* config) {
  config->qk_norm = true;
  config->qk_norm_span = QkNormSpan::kRow;
  MoeConfig& moe = config->moe;
  moe.score = RouterScore::kSigmoid;
  moe.choice_bias = true;
  moe.normalize_top = true;
}

// How files say it where they do not have the usual key.
Status RotaryDim(const JsonFields& json, DecoderConfig* config) {
  bool usual = json.Has("partial_rotary_factor");
  for (const char* key : {"rope_parameters", "rope_scaling"})
    usual = usual || (json.Has(key) && json.Find(key)->contains("partial_rotary_factor"));
  if (usual || !json.Has("rotary_dim")) return {};
  CELER_ASSIGN(config->rope.dim, json.GetInt("rotary_dim", 1, config->head_dim));
  return {};
}

}  // namespace

Status MiniMaxM2FromHf(const JsonFields& json, DecoderConfig* config) {
  MiniMaxArchitecture(config);
  MoeConfig& moe = config->moe;
  const char* experts = json.json().contains("num_local_experts") ? "num_local_experts" : "num_experts";
  CELER_ASSIGN(moe.experts, HfInt(json, experts, 1, 65536, 256));
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, moe.experts, 8));
  moe.intermediate = config->intermediate;
  CELER_RETURN_IF_ERROR(RotaryDim(json, config));
  moe.sparse_layer.assign(config->layers, true);
  return {};
}

Status MiniMaxM2FromGguf(const GgufFile& file, DecoderConfig* config) {
  MiniMaxArchitecture(config);
  return RouterFromGguf(file, config);
}

}  // namespace celer::families
