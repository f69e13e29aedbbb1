// Gemma 2 and Gemma 3: norms before and behind each branch, most layers with a sliding window. Gemma 2 has softcaps,
// Gemma 3 qk-norm instead and a rope of its own in layers with a window.
#include <algorithm>
#include <cmath>

#include "models/config/families/families.h"
#include "models/config/rope_config.h"

namespace celer::families {
namespace {

// A missing cap is the class's default, null is none.
Result<float> SoftcapOf(const JsonFields& json, const char* key, float if_missing) {
  if (!json.json().contains(key)) return if_missing;
  if (!json.Has(key)) return 0.0f;
  CELER_ASSIGN(const double cap, json.GetDouble(key));
  if (!(cap > 0))
    return Error::Corrupt(json.where(), ": '", key, "' is ", cap, ", expected a positive number");
  return static_cast<float>(cap);
}

void Gemma2Scales(DecoderConfig* config) {
  config->embedding_scale = std::sqrt(static_cast<float>(config->hidden));
  config->post_norm = true;
}

// What both have in config.json.
Status Gemma2And3FromHf(const JsonFields& json, int64_t period, DecoderConfig* config) {
  Gemma2Scales(config);
  config->embedding_scale_rounded = true;
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  CELER_ASSIGN(const std::string activation, json.GetString("hidden_activation", "gelu_pytorch_tanh"));
  CELER_RETURN_IF_ERROR(ReadActivation(activation, json.where(), config));
  CELER_ASSIGN(const double scalar, json.GetDouble("query_pre_attn_scalar", 256));
  if (!(scalar > 0))
    return Error::Corrupt(json.where(), ": 'query_pre_attn_scalar' is ", scalar,
                          ", expected a positive number");
  config->attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  return HfWindows(json, period, config);
}

// llama.cpp tells the model that scales scores otherwise by its number of layers.
void GgufScales(int64_t layers_of_27b, DecoderConfig* config) {
  Gemma2Scales(config);
  config->activation = Activation::kGeluTanh;
  const int64_t width = config->layers == layers_of_27b ? config->hidden / config->heads : config->head_dim;
  config->attention_scale = 1 / std::sqrt(static_cast<float>(width));
}

}  // namespace

Status Gemma2FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Gemma2And3FromHf(json, 2, config));
  CELER_ASSIGN(config->attention_softcap, SoftcapOf(json, "attn_logit_softcapping", 50));
  CELER_ASSIGN(config->logit_softcap, SoftcapOf(json, "final_logit_softcapping", 30));
  return {};
}

Status Gemma2FromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), "gemma2");
  GgufScales(46, config);
  CELER_ASSIGN(const double score_cap, reader.Float("attn_logit_softcapping", 50));
  CELER_ASSIGN(const double logit_cap, reader.Float("final_logit_softcapping", 30));
  config->attention_softcap = static_cast<float>(score_cap);
  config->logit_softcap = static_cast<float>(logit_cap);
  if (!reader.Has("attention.sliding_window")) config->sliding_window = 4096;
  CELER_ASSIGN(config->windowed_layer, reader.WindowedLayers(config->layers, 2));
  return {};
}

Status Gemma3FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const int64_t period, HfInt(json, "sliding_window_pattern", 1, int64_t{1} << 30, 6));
  CELER_RETURN_IF_ERROR(Gemma2And3FromHf(json, period, config));
  config->qk_norm = true;
  CELER_ASSIGN(config->logit_softcap, SoftcapOf(json, "final_logit_softcapping", 0));
  CELER_ASSIGN(const double theta, json.GetDouble("rope_theta", 1e6));
  CELER_ASSIGN(const double local_theta, json.GetDouble("rope_local_base_freq", 1e4));
  return ReadHfRopeOfKinds(json, theta, local_theta, config);
}

Status Gemma3FromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), "gemma3");
  GgufScales(62, config);
  config->qk_norm = true;
  CELER_ASSIGN(const double logit_cap, reader.Float("final_logit_softcapping", 0));
  config->logit_softcap = static_cast<float>(logit_cap);
  if (config->sliding_window == 0) return {};
  CELER_ASSIGN(config->windowed_layer, reader.WindowedLayers(config->layers, 6));
  RopeConfig& local = config->local_rope.emplace();
  local.dim = config->rope.dim;
  CELER_ASSIGN(local.theta, reader.Float("rope.freq_base_swa", 1e4));
  return {};
}

// Norms are stored less one.
void Gemma2HfTensors(const DecoderConfig& config, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Rename("model.layers.%.post_attention_layernorm.weight", to.attention_post_norm);
  rules->Rename("model.layers.%.pre_feedforward_layernorm.weight", to.ffn_norm);
  rules->Rename("model.layers.%.post_feedforward_layernorm.weight", to.ffn_post_norm);
  for (const char* part : {to.attention_norm, to.attention_post_norm, to.ffn_norm, to.ffn_post_norm, to.norm})
    rules->AddOne(part);
  if (!config.qk_norm) return;
  rules->AddOne(to.q_norm);
  rules->AddOne(to.k_norm);
}

}  // namespace celer::families
