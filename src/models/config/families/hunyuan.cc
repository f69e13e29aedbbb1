// Hunyuan: norms of q and k, after rope.
#include "models/config/families/families.h"

namespace celer::families {

Status HunyuanDenseFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  config->qk_norm = config->qk_norm_after_rope = true;
  return {};
}

// Its theta is scaled already.
Status HunyuanDenseFromGguf(const GgufFile&, DecoderConfig* config) {
  config->qk_norm = config->qk_norm_after_rope = true;
  return {};
}

void HunyuanHfTensors(const DecoderConfig&, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Rename("model.layers.%.self_attn.query_layernorm.weight", to.q_norm);
  rules->Rename("model.layers.%.self_attn.key_layernorm.weight", to.k_norm);
}

}  // namespace celer::families
