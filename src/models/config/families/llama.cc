// Llama 2, 3, 3.1, 3.2, TinyLlama, SmolLM2.
#include "models/config/families/families.h"

namespace celer::families {

Status LlamaFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  CELER_ASSIGN(config->mlp_bias, json.GetBool("mlp_bias", false));
  return {};
}

// Converters to GGUF reorder the rows of q and k for this architecture, so that pairs are neighbours.
Status LlamaFromGguf(const GgufFile&, DecoderConfig* config) {
  config->rope.layout = RopeLayout::kInterleaved;
  return {};
}

}  // namespace celer::families
