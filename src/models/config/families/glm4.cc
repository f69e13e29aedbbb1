// GLM-4-0414: norms before and behind each branch, half of each head rotates in neighbouring pairs, gate and up in one
// matrix.
#include "models/config/families/families.h"

namespace celer::families {

Status Glm4FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", true));
  config->rope.layout = RopeLayout::kInterleaved;
  config->post_norm = true;
  return {};
}

Status Glm4FromGguf(const GgufFile&, DecoderConfig* config) {
  config->rope.layout = RopeLayout::kInterleaved;
  config->post_norm = true;
  return {};
}

void Glm4HfTensors(const DecoderConfig& config, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Rename("model.layers.%.post_self_attn_layernorm.weight", to.attention_post_norm);
  rules->Rename("model.layers.%.post_mlp_layernorm.weight", to.ffn_post_norm);
  rules->Split("model.layers.%.mlp.gate_up_proj.weight",
               {{to.gate, config.intermediate}, {to.up, config.intermediate}});
}

void Glm4GgufTensors(const DecoderConfig& config, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Split(to.up, {{to.gate, config.intermediate}, {to.up, config.intermediate}});
}

}  // namespace celer::families
