// ERNIE 4.5, dense: Llama with rope over neighbouring pairs, in Hugging Face files and in GGUF alike.
#include "models/config/families/families.h"

namespace celer::families {

Status ErnieFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("use_bias", false));
  config->o_bias = config->mlp_bias = config->qkv_bias;
  config->rope.layout = RopeLayout::kInterleaved;
  return {};
}

Status ErnieFromGguf(const GgufFile&, DecoderConfig* config) {
  config->rope.layout = RopeLayout::kInterleaved;
  return {};
}

}  // namespace celer::families
