// Qwen1.5, Qwen2, Qwen2.5 (biases on q, k, v), Qwen3 (qk-norm instead, heads of their own size), and their
// mixtures of experts.
#include <algorithm>

#include "models/families/families.h"

namespace celer::families {
namespace {

// Newer versions of transformers write Mixtral's name.
const char* ExpertsKey(const JsonFields& json) {
  return json.Has("num_local_experts") ? "num_local_experts" : "num_experts";
}

}  // namespace

Status QwenWindow(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const bool used, json.GetBool("use_sliding_window", false));
  if (!used) return {};
  CELER_ASSIGN(config->sliding_window, json.GetInt("sliding_window", 0, int64_t{1} << 30, 0));
  CELER_ASSIGN(const int64_t full_layers, json.GetInt("max_window_layers", 0, int64_t{1} << 30, 0));
  config->windowed_layer.clear();
  for (int64_t i = 0; i < config->layers; ++i) config->windowed_layer.push_back(i >= full_layers);
  return {};
}

Status QwenSparseLayers(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const int64_t step, json.GetInt("decoder_sparse_step", 1, int64_t{1} << 30, 1));
  std::vector<int64_t> dense;
  if (json.Has("mlp_only_layers")) {
    CELER_ASSIGN(dense, json.GetInts("mlp_only_layers"));
  }
  config->moe.sparse_layer.clear();
  for (int64_t i = 0; i < config->layers; ++i)
    config->moe.sparse_layer.push_back((i + 1) % step == 0 &&
                                       std::find(dense.begin(), dense.end(), i) == dense.end());
  return {};
}

Status Qwen2FromHf(const JsonFields& json, DecoderConfig* config) {
  config->qkv_bias = true;
  return QwenWindow(json, config);
}

Status Qwen2FromGguf(const GgufFile&, DecoderConfig* config) {
  config->qkv_bias = true;
  return {};
}

Status Qwen3FromHf(const JsonFields& json, DecoderConfig* config) {
  config->qk_norm = true;
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  if (config->qkv_bias)
    return Error::Unsupported(json.where(), ": 'attention_bias' is true, which no published Qwen3 uses");
  return QwenWindow(json, config);
}

Status Qwen3FromGguf(const GgufFile&, DecoderConfig* config) {
  config->qk_norm = true;
  return {};
}

Status Qwen2MoeFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Qwen2FromHf(json, config));
  CELER_ASSIGN(config->moe.experts, json.GetInt(ExpertsKey(json), 1, 65536));
  CELER_ASSIGN(config->moe.per_token, json.GetInt("num_experts_per_tok", 1, config->moe.experts));
  CELER_ASSIGN(config->moe.intermediate, json.GetInt("moe_intermediate_size", 1, int64_t{1} << 20));
  CELER_ASSIGN(config->moe.shared_intermediate,
               json.GetInt("shared_expert_intermediate_size", 1, int64_t{1} << 20));
  CELER_ASSIGN(config->moe.normalize_top, json.GetBool("norm_topk_prob", false));
  return QwenSparseLayers(json, config);
}

Status Qwen2MoeFromGguf(const GgufFile& file, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Qwen2FromGguf(file, config));
  config->moe.normalize_top = false;
  return {};
}

Status Qwen3MoeFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Qwen3FromHf(json, config));
  CELER_ASSIGN(config->moe.experts, json.GetInt(ExpertsKey(json), 1, 65536));
  CELER_ASSIGN(config->moe.per_token, json.GetInt("num_experts_per_tok", 1, config->moe.experts));
  CELER_ASSIGN(config->moe.intermediate, json.GetInt("moe_intermediate_size", 1, int64_t{1} << 20));
  CELER_ASSIGN(config->moe.normalize_top, json.GetBool("norm_topk_prob", false));
  return QwenSparseLayers(json, config);
}

Status Qwen3MoeFromGguf(const GgufFile& file, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Qwen3FromGguf(file, config));
  config->moe.normalize_top = true;
  return {};
}

}  // namespace celer::families
