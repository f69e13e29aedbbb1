// What several families have in common.
#include "models/config/families/families.h"

namespace celer::families {

void RenamePair(const std::string& in_file, const char* weight, const char* bias, TensorRules* rules) {
  rules->Rename(in_file + ".weight", weight);
  rules->Rename(in_file + ".bias", bias);
}

void SplitQkv(const std::string& in_file, int64_t groups, const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  const int64_t q = c.heads * c.head_dim / groups, kv = c.kv_heads * c.head_dim / groups;
  rules->Split(in_file + ".weight", {{to.q, q}, {to.k, kv}, {to.v, kv}}, groups);
  rules->Split(in_file + ".bias", {{to.q_bias, q}, {to.k_bias, kv}, {to.v_bias, kv}}, groups);
}

void FusedQkvGgufTensors(const DecoderConfig& config, TensorRules* rules) {
  SplitQkv("blk.%.attn_qkv", 1, config, rules);
}

void LearnedPositions(int64_t offset, DecoderConfig* config) {
  config->position_offset = offset;
  config->position_rows = config->max_positions + offset;
  WithoutRope(config);
}

void WithoutRope(DecoderConfig* config) {
  config->rope = {};
  config->rope.dim = 2;  // the smallest, of a table that no layer reads
  config->rope_layer.assign(config->layers, false);
}

void LayerNormWithBias(DecoderConfig* config) {
  config->norm = NormKind::kLayer;
  config->norm_bias = true;
}

void PlainMlp(bool bias, DecoderConfig* config) {
  config->gated_mlp = false;
  config->mlp_bias = bias;
}

}  // namespace celer::families
