// OPT: learned positions whose table begins at position -2, LayerNorm, a feed-forward block without a gate.
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
  if (projected != config->hidden)
    return Error::Unsupported(json.where(), ": 'word_embed_proj_dim' is ", projected,
                              " and 'hidden_size' is ", config->hidden,
                              "; projections of the embeddings are not implemented");
  return {};
}

void OptHfTensors(const DecoderConfig&, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Prefix("model.decoder.", "");
  rules->Prefix("decoder.", "");  // published files of the model without a head
  rules->Rename("embed_tokens.weight", to.embedding);
  rules->Rename("embed_positions.weight", to.positions);
  RenamePair("final_layer_norm", to.norm, to.norm_bias, rules);
  const std::string layer = "layers.%.", attention = layer + "self_attn.";
  RenamePair(layer + "self_attn_layer_norm", to.attention_norm, to.attention_norm_bias, rules);
  RenamePair(attention + "q_proj", to.q, to.q_bias, rules);
  RenamePair(attention + "k_proj", to.k, to.k_bias, rules);
  RenamePair(attention + "v_proj", to.v, to.v_bias, rules);
  RenamePair(attention + "out_proj", to.o, to.o_bias, rules);
  RenamePair(layer + "final_layer_norm", to.ffn_norm, to.ffn_norm_bias, rules);
  RenamePair(layer + "fc1", to.up, to.up_bias, rules);
  RenamePair(layer + "fc2", to.down, to.down_bias, rules);
}

}  // namespace celer::families
