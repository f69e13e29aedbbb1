// StableLM 2 (partial rope, LayerNorm; the 12B norms each head of q and k with weights of its own and has attention and
// the feed-forward block in parallel), StarCoder2 (biases everywhere, no gate) and Phi-1, 1.5 and 2 (one norm for both
// blocks, in parallel).
#include "models/config/families/families.h"

namespace celer::families {

Status StablelmFromHf(const JsonFields& json, DecoderConfig* config) {
  LayerNormWithBias(config);
  CELER_ASSIGN(config->qkv_bias, json.GetBool("use_qkv_bias", false));
  CELER_ASSIGN(config->parallel_block, json.GetBool("use_parallel_residual", false));
  CELER_ASSIGN(config->qk_norm, json.GetBool("qk_layernorm", false));
  config->qk_norm_kind = NormKind::kLayer;
  config->qk_norm_span = QkNormSpan::kOwn;
  return {};
}

Status StablelmFromGguf(const GgufFile& file, DecoderConfig* config) {
  LayerNormWithBias(config);
  config->qk_norm = file.Find("blk.0.attn_q_norm.weight") != nullptr;
  config->qk_norm_kind = NormKind::kLayer;
  config->qk_norm_span = QkNormSpan::kOwn;
  // As llama.cpp does: the tensors say it.
  config->parallel_block = file.Find("blk.0.ffn_norm.weight") == nullptr;
  return {};
}

Status Starcoder2FromHf(const JsonFields& json, DecoderConfig* config) {
  LayerNormWithBias(config);
  CELER_ASSIGN(config->qkv_bias, json.GetBool("use_bias", true));
  config->o_bias = config->qkv_bias;
  PlainMlp(config->qkv_bias, config);
  CELER_ASSIGN(config->sliding_window, HfInt(json, "sliding_window", 1, int64_t{1} << 30, 0, 0));
  config->windowed_layer.assign(config->layers, true);
  return {};
}

Status Starcoder2FromGguf(const GgufFile&, DecoderConfig* config) {
  LayerNormWithBias(config);
  PlainMlp(config->mlp_bias, config);
  config->activation = Activation::kGeluTanh;
  return {};
}

Status PhiFromHf(const JsonFields& json, DecoderConfig* config) {
  LayerNormWithBias(config);
  config->qkv_bias = config->o_bias = config->head_bias = true;
  PlainMlp(true, config);
  config->parallel_block = true;
  CELER_ASSIGN(config->qk_norm, json.GetBool("qk_layernorm", false));
  config->qk_norm_kind = NormKind::kLayer;
  return {};
}

Status PhiFromGguf(const GgufFile&, DecoderConfig* config) {
  LayerNormWithBias(config);
  config->qkv_bias = config->head_bias = true;
  PlainMlp(true, config);
  config->parallel_block = true;
  config->activation = Activation::kGeluTanh;
  return {};
}

void StablelmHfTensors(const DecoderConfig&, TensorRules* rules) {
  const std::string attention = "model.layers.%.self_attn.";
  for (const std::string of : {"q", "k"})
    rules->Rename(attention + of + "_layernorm.norms.#.weight", attention + of + "_norm.#.weight");
}

void Starcoder2HfTensors(const DecoderConfig&, TensorRules* rules) {
  const PartNames& to = rules->parts();
  RenamePair("model.layers.%.mlp.c_fc", to.up, to.up_bias, rules);
  RenamePair("model.layers.%.mlp.c_proj", to.down, to.down_bias, rules);
}

void PhiHfTensors(const DecoderConfig&, TensorRules* rules) {
  const PartNames& to = rules->parts();
  RenamePair("model.final_layernorm", to.norm, to.norm_bias, rules);
  const std::string layer = "model.layers.%.";
  RenamePair(layer + "self_attn.dense", to.o, to.o_bias, rules);
  RenamePair(layer + "self_attn.q_layernorm", to.q_norm, to.q_norm_bias, rules);
  RenamePair(layer + "self_attn.k_layernorm", to.k_norm, to.k_norm_bias, rules);
  RenamePair(layer + "mlp.fc1", to.up, to.up_bias, rules);
  RenamePair(layer + "mlp.fc2", to.down, to.down_bias, rules);
}

}  // namespace celer::families
