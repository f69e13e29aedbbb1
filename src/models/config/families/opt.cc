// OPT: learned positions whose table begins at position -2, LayerNorm, a feed-forward block without a gate. OPT-350m norms
// the residual instead of what branches read, and projects a narrower embedding.
#include "models/config/families/families.h"

namespace celer::families {

Status OptFromHf(const JsonFields& json, DecoderConfig* config) {
  LayerNormWithBias(config);
  LearnedPositions(2, config);
  CELER_ASSIGN(config->qkv_bias, json.GetBool("enable_bias", true));
  config->o_bias = config->qkv_bias;
  PlainMlp(config->qkv_bias, config);
  CELER_ASSIGN(const int64_t projected,
               HfInt(json, "word_embed_proj_dim", 1, int64_t{1} << 30, config->hidden, config->hidden));
  if (projected != config->hidden) config->embedding_dim = projected;
  CELER_ASSIGN(const bool before, json.GetBool("do_layer_norm_before", true));
  CELER_ASSIGN(const bool removed, json.GetBool("_remove_final_layer_norm", false));
  config->pre_norm = before;
  config->residual_norm = !before;  // OPT-350m
  config->final_norm = before && !removed;
  return {};
}

void OptHfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Prefix("model.decoder.", "");
  rules->Prefix("decoder.", "");  // published files of the model without a head
  rules->Rename("embed_tokens.weight", to.embedding);
  rules->Rename("embed_positions.weight", to.positions);
  RenamePair("final_layer_norm", to.norm, to.norm_bias, rules);
  const std::string layer = "layers.%.", attention = layer + "self_attn.";
  rules->Rename("project_in.weight", to.project_in);
  rules->Rename("project_out.weight", to.project_out);
  if (c.residual_norm) {
    RenamePair(layer + "self_attn_layer_norm", to.attention_post_norm, to.attention_post_norm_bias, rules);
    RenamePair(layer + "final_layer_norm", to.ffn_post_norm, to.ffn_post_norm_bias, rules);
  } else {
    RenamePair(layer + "self_attn_layer_norm", to.attention_norm, to.attention_norm_bias, rules);
    RenamePair(layer + "final_layer_norm", to.ffn_norm, to.ffn_norm_bias, rules);
  }
  RenamePair(attention + "q_proj", to.q, to.q_bias, rules);
  RenamePair(attention + "k_proj", to.k, to.k_bias, rules);
  RenamePair(attention + "v_proj", to.v, to.v_bias, rules);
  RenamePair(attention + "out_proj", to.o, to.o_bias, rules);
  RenamePair(layer + "fc1", to.up, to.up_bias, rules);
  RenamePair(layer + "fc2", to.down, to.down_bias, rules);
}

}  // namespace celer::families
