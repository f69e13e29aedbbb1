// What the families with routers of their own share.
#include <algorithm>

#include "models/config/families/families.h"
#include "models/load/gguf_reader.h"

namespace celer::families {

Status DeepSeekRouterFromHf(const JsonFields& json, DecoderConfig* config) {
  MoeConfig& moe = config->moe;
  moe.score = RouterScore::kSigmoid;
  moe.choice_bias = true;
  moe.group_by_best_two = true;
  moe.normalize_eps = 1e-20f;
  moe.shared_gated = false;
  CELER_ASSIGN(moe.groups, HfInt(json, "n_group", 1, moe.experts, moe.groups));
  CELER_ASSIGN(moe.groups_used, HfInt(json, "topk_group", 1, moe.groups, moe.groups_used));
  CELER_ASSIGN(moe.normalize_top, json.GetBool("norm_topk_prob", true));
  CELER_ASSIGN(const double scale, json.GetDouble("routed_scaling_factor", moe.routed_scale));
  moe.routed_scale = static_cast<float>(scale);
  return {};
}

namespace {

// What the tensors of the first layer with experts say.
void RouterTensors(const GgufFile& file, MoeConfig* moe) {
  const auto sparse = std::find(moe->sparse_layer.begin(), moe->sparse_layer.end(), true);
  if (sparse == moe->sparse_layer.end()) return;
  const std::string layer = "blk." + std::to_string(sparse - moe->sparse_layer.begin()) + ".";
  moe->choice_bias = file.Find(layer + "exp_probs_b.bias") != nullptr;
  moe->router_bias = file.Find(layer + "ffn_gate_inp.bias") != nullptr;
  moe->expert_bias = file.Find(layer + "ffn_gate_exps.bias") != nullptr;
  moe->shared_gated = file.Find(layer + "ffn_gate_inp_shexp.weight") != nullptr;
  const TensorRecord* const shared = file.Find(layer + "ffn_gate_shexp.weight");
  moe->shared_intermediate = shared ? shared->shape[0] : 0;
}

}  // namespace

Status RouterFromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, config->architecture, config->architecture);
  MoeConfig& moe = config->moe;
  RouterTensors(file, &moe);
  CELER_ASSIGN(const int64_t gating,
               reader.Int("expert_gating_func", moe.score == RouterScore::kSigmoid ? 2 : 1));
  if (gating < 0 || gating > 3)
    return Error::Unsupported("metadata key 'expert_gating_func' is ", gating,
                              "; supported are 1 (softmax), 2 (sigmoid) and 3 (softmax of the chosen)");
  if (gating != 0) moe.score = gating == 2 ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  if (const auto normalize = file.GetBool(config->architecture + ".expert_weights_norm"))
    moe.normalize_top = *normalize || gating == 3;
  CELER_ASSIGN(const double scale, reader.Float("expert_weights_scale", moe.routed_scale));
  if (scale != 0) moe.routed_scale = static_cast<float>(scale);
  CELER_ASSIGN(const int64_t groups, reader.Int("expert_group_count", moe.groups));
  CELER_ASSIGN(const int64_t used, reader.Int("expert_group_used_count", moe.groups_used));
  if (groups > 1) moe.groups = groups, moe.groups_used = used;
  return {};
}

void GgufExpertBiases(const DecoderConfig& c, TensorRules* rules) {
  const auto vectors = [&](const char* name, int64_t width) { rules->SplitElements(name, {{name, width}}); };
  vectors("blk.%.ffn_gate_exps.bias", c.moe.intermediate);
  vectors("blk.%.ffn_up_exps.bias", c.moe.intermediate);
  vectors("blk.%.ffn_down_exps.bias", c.hidden);
}

}  // namespace celer::families
