// Gemma 1: the embedding is multiplied by the square root of its width, norms are stored less one.
#include <cmath>

#include "models/config/families/families.h"

namespace celer::families {
namespace {

void GemmaEmbedding(DecoderConfig* config) {
  config->embedding_scale = std::sqrt(static_cast<float>(config->hidden));
  config->embedding_scale_rounded = true;
}

}  // namespace

// The first files say "gelu", and mean its approximation by tanh.
Status GemmaFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  if (config->activation == Activation::kGelu) config->activation = Activation::kGeluTanh;
  GemmaEmbedding(config);
  return {};
}

Status GemmaFromGguf(const GgufFile&, DecoderConfig* config) {
  config->activation = Activation::kGeluTanh;
  GemmaEmbedding(config);
  return {};
}

void GemmaHfTensors(const DecoderConfig&, TensorRules* rules) {
  const PartNames& to = rules->parts();
  for (const char* part : {to.attention_norm, to.ffn_norm, to.norm}) rules->AddOne(part);
}

}  // namespace celer::families
