// Phi-3.5-MoE: LayerNorm, biases in attention and on the head, experts chosen by a sparse mixer.
#include "models/config/families/families.h"

namespace celer::families {
namespace {

// Its longrope says by what cos and sin are multiplied, in short sequences and in long ones.
Status ReadPhimoeScales(const JsonFields& json, RopeConfig* rope) {
  if (rope->scaling == RopeConfig::Scaling::kNone) return {};
  CELER_ASSIGN(const JsonFields fields,
               json.GetObject(json.Has("rope_scaling") ? "rope_scaling" : "rope_parameters"));
  CELER_ASSIGN(const double in_short, fields.GetDouble("short_mscale"));
  CELER_ASSIGN(const double in_long, fields.GetDouble("long_mscale"));
  if (in_short != in_long)
    return Error::Unsupported(fields.where(), ": 'short_mscale' is ", in_short, " and 'long_mscale' is ",
                              in_long, "; only equal ones are supported");
  rope->attention_factor = in_short;
  return {};
}

}  // namespace

Status PhimoeFromHf(const JsonFields& json, DecoderConfig* config) {
  LayerNormWithBias(config);
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  CELER_ASSIGN(config->head_bias, json.GetBool("lm_head_bias", false));
  CELER_ASSIGN(config->sliding_window, HfInt(json, "sliding_window", 1, int64_t{1} << 30, 0, 0));
  config->windowed_layer.assign(config->layers, true);
  CELER_RETURN_IF_ERROR(ReadPhimoeScales(json, &config->rope));
  MoeConfig& moe = config->moe;
  CELER_ASSIGN(moe.experts, HfInt(json, "num_local_experts", 2, 65536, 16));
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, moe.experts, 2));
  if (moe.experts_per_token != 2)
    return Error::Unsupported(json.where(), ": 'num_experts_per_tok' is ", moe.experts_per_token,
                              "; a sparse mixer chooses 2");
  CELER_ASSIGN(const double jitter, json.GetDouble("router_jitter_noise", 0.01));
  moe.score = RouterScore::kSparseMixer;
  moe.jitter = static_cast<float>(jitter);
  moe.intermediate = config->intermediate;
  moe.normalize_top = false;
  moe.sparse_layer.assign(config->layers, true);
  return {};
}

}  // namespace celer::families
