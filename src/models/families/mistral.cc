// Mistral 7B (all layers share one sliding window) and Mixtral (the same with experts). Their GGUF files call
// themselves "llama".
#include "models/families/families.h"

namespace celer::families {

Status MistralFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->sliding_window, json.GetInt("sliding_window", 0, int64_t{1} << 30, 0));
  config->windowed_layer.assign(static_cast<size_t>(config->layers), true);
  return {};
}

Status MixtralFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(MistralFromHf(json, config));
  CELER_ASSIGN(config->moe.experts, json.GetInt("num_local_experts", 1, 65536));
  CELER_ASSIGN(config->moe.per_token, json.GetInt("num_experts_per_tok", 1, config->moe.experts));
  config->moe.intermediate = config->intermediate;
  config->moe.normalize_top = true;
  config->moe.sparse_layer.assign(static_cast<size_t>(config->layers), true);
  return {};
}

}  // namespace celer::families
