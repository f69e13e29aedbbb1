// Hunyuan-A13B: qk-norm after rope, a shared expert without a gate as wide as the others.
#include <algorithm>

#include "io/file/printable.h"
#include "models/config/families/families.h"

namespace celer::families {
namespace {

void HunyuanMoeArchitecture(DecoderConfig* config) {
  config->qk_norm = true;
  config->qk_norm_after_rope = true;
  config->moe.normalize_top = true;
  config->moe.shared_gated = false;
}

// A number, or a list of one for each layer: all layers must have the same.
Result<int64_t> OneForAllLayers(const JsonFields& json, const char* key, int64_t max, int64_t if_missing) {
  const nlohmann::json* value = json.Find(key);
  if (!value || !value->is_array()) return HfInt(json, key, 1, max, if_missing);
  CELER_ASSIGN(const std::vector<int64_t> all, json.GetInts(key));
  if (all.empty() || all[0] < 1 || all[0] > max ||
      std::count(all.begin(), all.end(), all[0]) != std::ssize(all))
    return Error::Unsupported(json.where(), ": '", key, "' is ", Printable(JsonText(*value), 60),
                              "; only one number from 1 to ", max, " for all layers is supported");
  return all[0];
}

}  // namespace

Status HunyuanV1MoeFromHf(const JsonFields& json, DecoderConfig* config) {
  HunyuanMoeArchitecture(config);
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  MoeConfig& moe = config->moe;
  const char* experts = json.json().contains("num_experts") ? "num_experts" : "num_local_experts";
  const char* used = json.json().contains("moe_topk") ? "moe_topk" : "num_experts_per_tok";
  CELER_ASSIGN(moe.experts, OneForAllLayers(json, experts, 65536, 1));
  CELER_ASSIGN(moe.experts_per_token, OneForAllLayers(json, used, moe.experts, 1));
  moe.intermediate = moe.shared_intermediate = config->intermediate;
  moe.sparse_layer.assign(config->layers, true);
  return {};
}

void HunyuanV1MoeHfTensors(const DecoderConfig&, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Rename("model.layers.%.self_attn.query_layernorm.weight", to.q_norm);
  rules->Rename("model.layers.%.self_attn.key_layernorm.weight", to.k_norm);
}

Status HunyuanV1MoeFromGguf(const GgufFile& file, DecoderConfig* config) {
  HunyuanMoeArchitecture(config);
  return RouterFromGguf(file, config);
}

}  // namespace celer::families
