// GLM-4-9B: half of each head rotates in neighbouring pairs, biases on q, k and v, gate and up in one matrix.
#include "models/config/families/families.h"

namespace celer::families {

Status GlmFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", true));
  config->rope.layout = RopeLayout::kInterleaved;
  return {};
}

void GlmHfTensors(const DecoderConfig& config, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Split("model.layers.%.mlp.gate_up_proj.weight",
               {{to.gate, config.intermediate}, {to.up, config.intermediate}});
}

// Files of the older checkpoints have q, k and v in one tensor.
Status GlmFromGguf(const GgufFile& file, DecoderConfig* config) {
  config->qkv_bias = file.Find("blk.0.attn_q.bias") || file.Find("blk.0.attn_qkv.bias");
  config->rope.layout = RopeLayout::kInterleaved;
  return {};
}

void GlmGgufTensors(const DecoderConfig& config, TensorRules* rules) {
  const PartNames& to = rules->parts();
  const int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  rules->Split("blk.%.attn_qkv.weight", {{to.q, q}, {to.k, kv}, {to.v, kv}});
  rules->Split("blk.%.attn_qkv.bias", {{to.q_bias, q}, {to.k_bias, kv}, {to.v_bias, kv}});
  rules->Split("blk.%.ffn_up.weight", {{to.gate, config.intermediate}, {to.up, config.intermediate}});
}

}  // namespace celer::families
