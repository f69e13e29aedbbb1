// GLM-4.5, GLM-4.5-Air, GLM-4.6: DeepSeek V3's router and experts behind plain attention.
#include <fmt/format.h>

#include <algorithm>

#include "models/config/families/families.h"

namespace celer::families {
namespace {

// Behind the last layer.
void SkipMtpLayer(const DecoderConfig& c, const char* layers, TensorRules* rules) {
  rules->Skip(fmt::format("{}.{}.", layers, c.layers), "multi-token prediction");
}

}  // namespace

Status Glm4MoeFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  CELER_ASSIGN(config->qk_norm, json.GetBool("use_qk_norm", false));
  MoeConfig& moe = config->moe;
  const char* experts = json.json().contains("n_routed_experts") ? "n_routed_experts" : "num_local_experts";
  CELER_ASSIGN(moe.experts, HfInt(json, experts, 1, 65536, 128));
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, moe.experts, 8));
  CELER_ASSIGN(moe.intermediate, HfInt(json, "moe_intermediate_size", 1, int64_t{1} << 20, 1408));
  CELER_ASSIGN(const int64_t shared, HfInt(json, "n_shared_experts", 0, 1024, 1));
  moe.shared_intermediate = shared * moe.intermediate;
  CELER_ASSIGN(const int64_t dense, HfInt(json, "first_k_dense_replace", 0, config->layers, 1));
  moe.sparse_layer.assign(config->layers, true);
  std::fill_n(moe.sparse_layer.begin(), dense, false);
  return DeepSeekRouterFromHf(json, config);
}

void Glm4MoeHfTensors(const DecoderConfig& c, TensorRules* rules) {
  SkipMtpLayer(c, "model.layers", rules);
}

Status Glm4MoeFromGguf(const GgufFile& file, DecoderConfig* config) {
  config->qk_norm = file.Find("blk.0.attn_q_norm.weight") != nullptr;
  config->moe.score = RouterScore::kSigmoid;
  config->moe.group_by_best_two = true;
  config->moe.normalize_eps = 1e-20f;
  return RouterFromGguf(file, config);
}

void Glm4MoeGgufTensors(const DecoderConfig& c, TensorRules* rules) {
  SkipMtpLayer(c, "blk", rules);
  rules->Rename("blk.%.post_attention_norm.weight", rules->parts().ffn_norm);
}

}  // namespace celer::families
