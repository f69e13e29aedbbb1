// ERNIE 4.5 with experts: softmax with a bias for choosing, shared experts without a gate.
#include <algorithm>

#include "models/config/families/families.h"

namespace celer::families {
namespace {

constexpr int64_t kAnyLayer = 4096;

Status ErnieSparseLayers(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const int64_t interval, HfInt(json, "moe_layer_interval", 1, kAnyLayer, 1));
  CELER_ASSIGN(const int64_t first, HfInt(json, "moe_layer_start_index", 0, kAnyLayer, 1));
  CELER_ASSIGN(int64_t last, HfInt(json, "moe_layer_end_index", -1, kAnyLayer, -1));
  if (last == -1) last = config->layers - 1;
  config->moe.sparse_layer.clear();
  for (int64_t i = 0; i < config->layers; ++i)
    config->moe.sparse_layer.push_back((i + 1) % interval == 0 && i >= first && i <= last);
  return {};
}

void ErnieRouter(MoeConfig* moe) {
  moe->choice_bias = true;
  moe->normalize_top = true;
  moe->normalize_floor = true;
  moe->normalize_eps = 1e-12f;
  moe->shared_gated = false;
}

}  // namespace

Status Ernie45MoeFromHf(const JsonFields& json, DecoderConfig* config) {
  config->rope.layout = RopeLayout::kInterleaved;
  CELER_ASSIGN(config->qkv_bias, json.GetBool("use_bias", false));
  config->o_bias = config->mlp_bias = config->head_bias = config->qkv_bias;
  MoeConfig& moe = config->moe;
  ErnieRouter(&moe);
  const char* experts = json.json().contains("moe_num_experts") ? "moe_num_experts" : "num_experts";
  const char* used = json.json().contains("moe_k") ? "moe_k" : "num_experts_per_tok";
  CELER_ASSIGN(moe.experts, HfInt(json, experts, 1, 65536, 64));
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, used, 1, moe.experts, 6));
  CELER_ASSIGN(moe.intermediate, HfInt(json, "moe_intermediate_size", 1, int64_t{1} << 20, 1536));
  CELER_ASSIGN(const int64_t shared, HfInt(json, "moe_num_shared_experts", 0, 1024, 2));
  moe.shared_intermediate = shared * moe.intermediate;
  CELER_ASSIGN(const double least, json.GetDouble("moe_norm_min", 1e-12));
  moe.normalize_eps = static_cast<float>(least);
  return ErnieSparseLayers(json, config);
}

void Ernie45MoeHfTensors(const DecoderConfig& c, TensorRules* rules) {
  const std::string bias = "model.layers.%.mlp.moe_statics.e_score_correction_bias";
  rules->SplitElements(bias, {{bias, c.moe.experts}});  // [1, experts]
  rules->Skip("model.mtp", "multi-token prediction");
  rules->Skip("mtp", "multi-token prediction");
}

Status Ernie45MoeFromGguf(const GgufFile& file, DecoderConfig* config) {
  config->rope.layout = RopeLayout::kInterleaved;
  ErnieRouter(&config->moe);
  return RouterFromGguf(file, config);
}

}  // namespace celer::families
