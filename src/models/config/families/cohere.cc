// Cohere's Command R and R+ (attention and feed-forward block in parallel behind one LayerNorm without bias; R+ norms each
// head of q and k with weights of its own) and Command R7B (three layers with a window, then one that sees all and has no
// rope).
#include "models/config/families/families.h"

namespace celer::families {
namespace {

Status CohereBlock(const JsonFields& json, DecoderConfig* config) {
  config->norm = NormKind::kLayer;
  config->parallel_block = true;
  config->rope.layout = RopeLayout::kInterleaved;
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  CELER_ASSIGN(const double scale, json.GetDouble("logit_scale", 0.0625));
  config->logit_scale = static_cast<float>(scale);
  return {};
}

// Every `pattern`-th layer sees all; only the others rotate.
void EveryNthFull(int64_t pattern, DecoderConfig* config) {
  for (int64_t i = 0; i < config->layers; ++i) config->windowed_layer.push_back((i + 1) % pattern != 0);
  config->rope_layer = config->windowed_layer;
}

}  // namespace

Status CohereFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(CohereBlock(json, config));
  CELER_ASSIGN(config->qk_norm, json.GetBool("use_qk_norm", false));
  config->qk_norm_kind = NormKind::kLayer;
  config->qk_norm_span = QkNormSpan::kOwn;
  return {};
}

Status CohereFromGguf(const GgufFile& file, DecoderConfig* config) {
  config->norm = NormKind::kLayer;
  config->parallel_block = true;
  config->rope.layout = RopeLayout::kInterleaved;
  config->qk_norm = file.Find("blk.0.attn_q_norm.weight") != nullptr;
  config->qk_norm_kind = NormKind::kLayer;
  config->qk_norm_span = QkNormSpan::kOwn;
  config->logit_scale = static_cast<float>(file.GetFloat("command-r.logit_scale").value_or(1));
  return {};
}

Status Cohere2FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(CohereBlock(json, config));
  CELER_ASSIGN(config->sliding_window, HfInt(json, "sliding_window", 1, int64_t{1} << 30, 4096));
  if (json.Has("layer_types")) {
    CELER_ASSIGN(config->windowed_layer, WindowedByType(json, config->layers));
    config->rope_layer = config->windowed_layer;
    return {};
  }
  CELER_ASSIGN(const int64_t pattern, HfInt(json, "sliding_window_pattern", 1, int64_t{1} << 30, 4));
  EveryNthFull(pattern, config);
  return {};
}

Status Cohere2FromGguf(const GgufFile& file, DecoderConfig* config) {
  config->norm = NormKind::kLayer;
  config->parallel_block = true;
  config->rope.layout = RopeLayout::kInterleaved;
  config->logit_scale = static_cast<float>(file.GetFloat("cohere2.logit_scale").value_or(1));
  config->windowed_layer.clear();
  EveryNthFull(4, config);  // llama.cpp has no key for it
  return {};
}

}  // namespace celer::families
