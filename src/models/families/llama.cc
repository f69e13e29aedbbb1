// Llama 2, 3, 3.1, 3.2, TinyLlama, SmolLM2.
#include "models/families/families.h"

namespace celer::families {

Status LlamaFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const bool bias, json.GetBool("attention_bias", false));
  if (bias)
    return Error::Unsupported(json.where(),
                              ": 'attention_bias' is true, which adds a bias to the output projection too");
  CELER_ASSIGN(const bool mlp_bias, json.GetBool("mlp_bias", false));
  if (mlp_bias)
    return Error::Unsupported(json.where(), ": 'mlp_bias' is true, which no published Llama uses");
  config->qkv_bias = false;
  return {};
}

// Converters to GGUF reorder the rows of q and k for this architecture, so that pairs are neighbours.
Status LlamaFromGguf(const GgufFile&, DecoderConfig* config) {
  config->rope.layout = RopeLayout::kInterleaved;
  return {};
}

}  // namespace celer::families
