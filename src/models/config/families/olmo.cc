// OLMo 2 and OLMo 3 (norms behind each branch alone, OLMo 3 with a sliding window in most layers) and OLMoE, a mixture
// of experts with norms before them. In all of them one qk-norm spans all heads.
#include "models/config/families/families.h"
#include "models/config/rope_config.h"

namespace celer::families {
namespace {

void OlmoRowNorm(DecoderConfig* config) {
  config->qk_norm = true;
  config->qk_norm_span = QkNormSpan::kRow;
}

void OlmoPostNorms(DecoderConfig* config) {
  OlmoRowNorm(config);
  config->pre_norm = false;
  config->post_norm = true;
}

Status OlmoBiases(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  return {};
}

}  // namespace

Status Olmo2FromHf(const JsonFields& json, DecoderConfig* config) {
  OlmoPostNorms(config);
  return OlmoBiases(json, config);
}

Status Olmo3FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Olmo2FromHf(json, config));
  CELER_RETURN_IF_ERROR(HfWindows(json, 4, config));
  CELER_ASSIGN(const double theta, json.GetDouble("rope_theta", 5e5));
  // transformers takes the older name for layers with full attention alone.
  return ReadHfRopeOfKinds(json, theta, 5e5, config);
}

// OLMo 3 is one with a window. Rope scaling is that of layers without one.
Status Olmo2FromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), "olmo2");
  OlmoPostNorms(config);
  if (config->sliding_window == 0) return {};
  CELER_ASSIGN(config->windowed_layer, reader.WindowedLayers(config->layers, 4));
  RopeConfig& local = config->local_rope.emplace();
  local.dim = config->rope.dim;
  CELER_ASSIGN(local.theta, reader.Float("rope.freq_base_swa", config->rope.theta));
  return {};
}

Status OlmoeFromHf(const JsonFields& json, DecoderConfig* config) {
  OlmoRowNorm(config);
  CELER_RETURN_IF_ERROR(OlmoBiases(json, config));
  MoeConfig& moe = config->moe;
  // Newer versions of transformers write Mixtral's name.
  const char* experts = json.Has("num_local_experts") ? "num_local_experts" : "num_experts";
  CELER_ASSIGN(moe.experts, HfInt(json, experts, 1, 65536, 64));
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, moe.experts, 8));
  CELER_ASSIGN(moe.normalize_top, json.GetBool("norm_topk_prob", false));
  moe.intermediate = config->intermediate;
  moe.sparse_layer.assign(config->layers, true);
  return {};
}

Status OlmoeFromGguf(const GgufFile&, DecoderConfig* config) {
  OlmoRowNorm(config);
  config->moe.normalize_top = false;
  return {};
}

void PostNormHfTensors(const DecoderConfig&, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Rename("model.layers.%.post_attention_layernorm.weight", to.attention_post_norm);
  rules->Rename("model.layers.%.post_feedforward_layernorm.weight", to.ffn_post_norm);
}

}  // namespace celer::families
