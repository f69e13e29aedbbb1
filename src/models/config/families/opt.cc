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

}  // namespace celer::families
