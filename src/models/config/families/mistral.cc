// Mistral 7B (all layers share one sliding window), Mixtral (the same with experts), whose GGUF files call themselves
// "llama", and Ministral 3 (queries that grow with their position).
#include "models/config/families/families.h"
#include "models/load/gguf_reader.h"

namespace celer::families {

namespace {

// In every layer; null means none.
Status Window(const JsonFields& json, int64_t if_missing, DecoderConfig* config) {
  CELER_ASSIGN(config->sliding_window, HfInt(json, "sliding_window", 1, int64_t{1} << 30, if_missing, 0));
  config->windowed_layer.assign(config->layers, true);
  return {};
}

}  // namespace

// transformers takes one with "layer_types" for a Ministral, which differs in nothing else.
Status MistralFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Window(json, 4096, config));
  if (json.Has("layer_types")) {
    CELER_ASSIGN(config->windowed_layer, WindowedByType(json, config->layers));
  }
  return {};
}

Status MixtralFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Window(json, 0, config));
  const char* experts = json.json().contains("num_experts") ? "num_experts" : "num_local_experts";
  CELER_ASSIGN(config->moe.experts, HfInt(json, experts, 1, 65536, 8));
  CELER_ASSIGN(config->moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, config->moe.experts, 2));
  config->moe.intermediate = config->intermediate;
  config->moe.normalize_top = true;
  config->moe.sparse_layer.assign(config->layers, true);
  return {};
}

Status Ministral3FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Window(json, 0, config));
  const char* key = json.Has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  CELER_ASSIGN(const JsonFields rope, json.GetObject(key));
  CELER_ASSIGN(config->query_scale.beta, rope.GetDouble("llama_4_scaling_beta", 0));
  CELER_ASSIGN(const double inner, rope.GetDouble("original_max_position_embeddings",
                                                  static_cast<double>(config->max_positions)));
  CELER_ASSIGN(config->query_scale.positions, json.GetDouble("original_max_position_embeddings", inner));
  return {};
}

Status Ministral3FromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), config->architecture);
  config->rope.layout = RopeLayout::kInterleaved;
  CELER_ASSIGN(config->query_scale.beta, reader.Float("attention.temperature_scale", 0));
  CELER_ASSIGN(config->query_scale.positions, reader.Float("rope.scaling.original_context_length",
                                                           static_cast<double>(config->max_positions)));
  return {};
}

}  // namespace celer::families
