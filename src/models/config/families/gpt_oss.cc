// gpt-oss: windows in every second layer, attention sinks, biases everywhere, experts with a clamped SwiGLU.
#include <cmath>

#include "models/config/families/families.h"
#include "models/load/gguf_reader.h"

namespace celer::families {
namespace {

constexpr double kSwigluAlpha = 1.702;  // what ActivateMul has

// What transformers takes where a file names no rope.
void DefaultGptOssRope(DecoderConfig* config) {
  RopeConfig& rope = config->rope;
  rope.scaling = RopeConfig::Scaling::kYarn;
  rope.factor = 32;
  rope.original_positions = 4096;
  rope.truncate = false;
  rope.attention_factor = 0.1 * std::log(rope.factor) + 1;
}

// All but sizes.
void GptOssArchitecture(DecoderConfig* config) {
  MoeConfig& moe = config->moe;
  config->activation = Activation::kSilu;
  config->attention_sinks = true;
  moe.intermediate = config->intermediate;
  moe.sparse_layer.assign(config->layers, true);
  moe.normalize_top = true;  // a softmax of the chosen experts' logits is that of all, normalized
  moe.router_bias = moe.expert_bias = true;
}

// As transformers does without layer_types, and llama.cpp always: the even layers.
void WindowEverySecondLayer(DecoderConfig* config) {
  config->windowed_layer.clear();
  for (int64_t i = 0; i < config->layers; ++i) config->windowed_layer.push_back(i % 2 == 0);
}

}  // namespace

Status GptOssFromHf(const JsonFields& json, DecoderConfig* config) {
  GptOssArchitecture(config);
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", true));
  config->o_bias = config->qkv_bias;
  if (!json.Has("rope_scaling") && !json.Has("rope_parameters")) DefaultGptOssRope(config);
  const char* experts = json.json().contains("num_local_experts") ? "num_local_experts" : "num_experts";
  MoeConfig& moe = config->moe;
  CELER_ASSIGN(moe.experts, HfInt(json, experts, 1, 65536, 128));
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, moe.experts, 4));
  CELER_ASSIGN(const double alpha, json.GetDouble("swiglu_alpha", kSwigluAlpha));
  if (alpha != kSwigluAlpha)
    return Error::Unsupported(json.where(), ": 'swiglu_alpha' is ", alpha, "; only ", kSwigluAlpha,
                              " is supported");
  CELER_ASSIGN(const double limit, json.GetDouble("swiglu_limit", 7));
  if (!(limit > 0))
    return Error::Corrupt(json.where(), ": 'swiglu_limit' is ", limit, ", expected a positive number");
  config->swiglu_limit = static_cast<float>(limit);
  WindowEverySecondLayer(config);
  if (json.Has("layer_types")) {
    CELER_ASSIGN(config->windowed_layer, WindowedByType(json, config->layers));
  }
  CELER_ASSIGN(config->sliding_window, HfInt(json, "sliding_window", 1, int64_t{1} << 30, 128));
  return {};
}

// gate and up alternate in the columns of a stack [experts, hidden, 2 * intermediate], or in the rows of what is
// quantized.
void GptOssHfTensors(const DecoderConfig& c, TensorRules* rules) {
  const std::string in_file = "model.layers.%.mlp.experts.", expert = in_file + "#.";
  rules->SplitTransposed(in_file + "gate_up_proj",
                         {{expert + "gate_proj.weight", 1}, {expert + "up_proj.weight", 1}},
                         c.moe.intermediate);
  rules->SplitTransposed(in_file + "down_proj", {{expert + "down_proj.weight", c.hidden}});
  rules->SplitElements(in_file + "gate_up_proj_bias",
                       {{in_file + "gate_proj.bias", 1}, {in_file + "up_proj.bias", 1}}, c.moe.intermediate);
  rules->SplitElements(in_file + "down_proj_bias", {{in_file + "down_proj.bias", c.hidden}});
}

Status GptOssFromGguf(const GgufFile& file, DecoderConfig* config) {
  const int64_t intermediate = config->moe.intermediate;
  GptOssArchitecture(config);
  config->moe.intermediate = intermediate;
  config->swiglu_limit = 7;  // which GGUF has no key for
  WindowEverySecondLayer(config);
  return RouterFromGguf(file, config);
}

void GptOssGgufTensors(const DecoderConfig& c, TensorRules* rules) {
  // Llama.cpp's name for the norm before the experts.
  rules->Rename("blk.%.post_attention_norm.weight", rules->parts().ffn_norm);
  GgufExpertBiases(c, rules);
}

}  // namespace celer::families
