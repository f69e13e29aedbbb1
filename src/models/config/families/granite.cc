// Granite 3 (scalars on the embedding, the branches, the scores and the logits), its mixtures of experts with and without
// a shared expert, and MiniCPM 1, 2 and 4, whose scalars have other names.
#include <cmath>

#include "models/config/families/families.h"
#include "models/load/gguf_reader.h"

namespace celer::families {
namespace {

constexpr int64_t kMostExperts = 65536;

}  // namespace

Status GraniteScales(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const double embedding, json.GetDouble("embedding_multiplier", 1));
  CELER_ASSIGN(const double residual, json.GetDouble("residual_multiplier", 1));
  CELER_ASSIGN(const double attention, json.GetDouble("attention_multiplier", 1));
  CELER_ASSIGN(const double logits, json.GetDouble("logits_scaling", 1));
  if (attention == 0)
    return Error::Unsupported(json.where(), ": 'attention_multiplier' is 0, which makes all scores equal");
  config->embedding_scale = static_cast<float>(embedding);
  config->residual_scale = static_cast<float>(residual);
  config->attention_scale = static_cast<float>(attention);
  config->logit_scale = static_cast<float>(1 / logits);
  return {};
}

namespace {

// 0 is none, as llama.cpp reads them.
Result<float> ScaleOf(const GgufReader& reader, const char* key, double if_missing) {
  CELER_ASSIGN(const double scale, reader.Float(key, if_missing));
  return static_cast<float>(scale == 0 ? 1 : scale);
}

// Logits are divided by the file's number.
Status GgufScales(const GgufReader& reader, double embedding, double residual, double logits,
                  DecoderConfig* config) {
  CELER_ASSIGN(config->embedding_scale, ScaleOf(reader, "embedding_scale", embedding));
  CELER_ASSIGN(config->residual_scale, ScaleOf(reader, "residual_scale", residual));
  CELER_ASSIGN(const float divisor, ScaleOf(reader, "logit_scale", logits));
  config->logit_scale = 1 / divisor;
  config->rope.layout = RopeLayout::kInterleaved;  // converters reorder the rows of q and k
  return {};
}

}  // namespace

Status GraniteFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  CELER_ASSIGN(config->mlp_bias, json.GetBool("mlp_bias", false));
  return GraniteScales(json, config);
}

Status GraniteMoeFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  CELER_RETURN_IF_ERROR(GraniteScales(json, config));
  MoeConfig& moe = config->moe;
  CELER_ASSIGN(moe.experts, HfInt(json, "num_local_experts", 1, kMostExperts, 8));
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, moe.experts, 2));
  moe.intermediate = config->intermediate;
  moe.normalize_top = true;  // the same as a softmax over the chosen experts' logits alone
  moe.shared_gated = false;
  moe.sparse_layer.assign(config->layers, true);
  return {};
}

Status GraniteMoeSharedFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(GraniteMoeFromHf(json, config));
  CELER_ASSIGN(config->moe.shared_intermediate,
               HfInt(json, "shared_intermediate_size", 0, int64_t{1} << 20, 0));
  return {};
}

void GraniteMoeHfTensors(const DecoderConfig& config, TensorRules* rules) {
  const std::string block = "model.layers.%.block_sparse_moe.", shared = "model.layers.%.shared_mlp.";
  const std::string expert = block + "experts.#";
  const int64_t width = config.moe.intermediate, shared_width = config.moe.shared_intermediate;
  rules->Split(block + "input_linear.weight",
               {{expert + ".gate.weight", width}, {expert + ".up.weight", width}});
  rules->Split(block + "output_linear.weight", {{expert + ".down.weight", config.hidden}});
  if (shared_width == 0) return;
  rules->Split(shared + "input_linear.weight",
               {{shared + "gate.weight", shared_width}, {shared + "up.weight", shared_width}});
  rules->Rename(shared + "output_linear.weight", shared + "down.weight");
}

Status GraniteFromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), config->architecture);
  CELER_RETURN_IF_ERROR(GgufScales(reader, 1, 1, 1, config));
  CELER_ASSIGN(const double attention, reader.Float("attention.scale", 0));
  config->attention_scale = static_cast<float>(attention);
  config->moe.normalize_top = true;
  config->moe.shared_gated = false;
  return {};
}

Status MiniCpmFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  CELER_ASSIGN(const double embedding, json.GetDouble("scale_emb", 1));
  CELER_ASSIGN(const double depth, json.GetDouble("scale_depth", 1));
  CELER_ASSIGN(const double base, json.GetDouble("dim_model_base", 1));
  config->embedding_scale = static_cast<float>(embedding);
  config->residual_scale = static_cast<float>(depth / std::sqrt(static_cast<double>(config->layers)));
  config->logit_scale = static_cast<float>(base / static_cast<double>(config->hidden));
  return {};
}

// The first files had no such keys: they are of models with these numbers.
Status MiniCpmFromGguf(const GgufFile& file, DecoderConfig* config) {
  constexpr double kEmbedding = 12, kDepth = 1.4, kBase = 256;
  const GgufReader reader(file, file.source(), config->architecture);
  return GgufScales(reader, kEmbedding, kDepth / std::sqrt(static_cast<double>(config->layers)),
                    static_cast<double>(config->hidden) / kBase, config);
}

}  // namespace celer::families
