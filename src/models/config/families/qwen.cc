// Qwen1.5, Qwen2, Qwen2.5 (biases on q, k, v), Qwen3 (qk-norm instead, heads of their own size), and their
// mixtures of experts.
#include <algorithm>

#include "io/file/printable.h"
#include "models/config/families/families.h"

namespace celer::families {
namespace {

// 0: none. Only use_sliding_window makes anything of the key.
Result<int64_t> UsedWindow(const JsonFields& json) {
  CELER_ASSIGN(const bool used, json.GetBool("use_sliding_window", false));
  CELER_ASSIGN(const int64_t window, HfInt(json, "sliding_window", used ? 1 : 0, int64_t{1} << 30, 4096, 0));
  return used ? window : 0;
}

// `by_default` says which layers have the window where the file does not.
Status QwenWindow(const JsonFields& json, DecoderConfig* config,
                  bool (*by_default)(int64_t layer, int64_t max)) {
  CELER_ASSIGN(config->sliding_window, UsedWindow(json));
  CELER_ASSIGN(const int64_t max, HfInt(json, "max_window_layers", 0, int64_t{1} << 30, 28));
  if (!json.Has("layer_types")) {
    for (int64_t i = 0; i < config->layers; ++i) config->windowed_layer.push_back(by_default(i, max));
    return {};
  }
  CELER_ASSIGN(config->windowed_layer, WindowedByType(json, config->layers));
  const auto windowed = std::find(config->windowed_layer.begin(), config->windowed_layer.end(), true);
  if (config->sliding_window == 0 && windowed != config->windowed_layer.end())
    return Error::Corrupt(json.where(),
                          ": 'layer_types' names layers with a sliding window, and 'use_sliding_window' or "
                          "'sliding_window' says that there is none");
  return {};
}

// As Qwen2 and Qwen3 do: the layers from max_window_layers on.
bool FromLayer(int64_t layer, int64_t max) {
  return layer >= max;
}

// As Qwen2-MoE does: every second layer below max_window_layers.
bool EverySecondBelow(int64_t layer, int64_t max) {
  return layer % 2 == 0 && layer < max;
}

Status Qwen3Attention(const JsonFields& json, DecoderConfig* config) {
  config->qk_norm = true;
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  return {};
}

// The fields of both mixtures, with the defaults of their classes.
Status QwenExperts(const JsonFields& json, const char* experts_key, int64_t experts, int64_t per_token,
                   int64_t intermediate, DecoderConfig* config) {
  MoeConfig& moe = config->moe;
  CELER_ASSIGN(moe.experts, HfInt(json, experts_key, 0, 65536, experts));
  if (moe.experts == 0) return {};  // all layers are dense
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, moe.experts, per_token));
  CELER_ASSIGN(moe.intermediate, HfInt(json, "moe_intermediate_size", 1, int64_t{1} << 20, intermediate));
  CELER_ASSIGN(moe.normalize_top, json.GetBool("norm_topk_prob", false));
  return QwenSparseLayers(json, config);
}

}  // namespace

Result<std::vector<bool>> WindowedByType(const JsonFields& json, int64_t layers) {
  const nlohmann::json& types = *json.Find("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers)
    return Error::Corrupt(json.where(), ": 'layer_types' is not a list of ", layers,
                          " names, one for each layer");
  std::vector<bool> windowed;
  for (const nlohmann::json& type : types) {
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    const bool sliding = name == "sliding_attention";
    if (!sliding && name != "full_attention" && name != "attention")
      return Error::Unsupported(json.where(), ": 'layer_types' names ", Printable(JsonText(type), 60),
                                "; supported are \"full_attention\" and \"sliding_attention\"");
    windowed.push_back(sliding);
  }
  return windowed;
}

Status HfWindows(const JsonFields& json, int64_t period, DecoderConfig* config) {
  CELER_ASSIGN(config->sliding_window, HfInt(json, "sliding_window", 1, int64_t{1} << 30, 4096, 0));
  if (json.Has("layer_types")) {
    CELER_ASSIGN(config->windowed_layer, WindowedByType(json, config->layers));
  } else {
    for (int64_t i = 0; i < config->layers; ++i)
      config->windowed_layer.push_back(period > 0 && (i + 1) % period != 0);
  }
  const auto windowed = std::find(config->windowed_layer.begin(), config->windowed_layer.end(), true);
  if (config->sliding_window == 0 && windowed != config->windowed_layer.end())
    return Error::Corrupt(json.where(), ": 'sliding_window' is null, and some layers have one");
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
  return QwenWindow(json, config, FromLayer);
}

// Without them it would run, and be another model.
Status Qwen2FromGguf(const GgufFile&, DecoderConfig* config) {
  config->qkv_bias = true;
  return {};
}

Status Qwen3FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Qwen3Attention(json, config));
  return QwenWindow(json, config, FromLayer);
}

Status Qwen3FromGguf(const GgufFile&, DecoderConfig* config) {
  config->qk_norm = true;
  return {};
}

Status Qwen2MoeFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("qkv_bias", true));
  CELER_RETURN_IF_ERROR(QwenWindow(json, config, EverySecondBelow));
  CELER_ASSIGN(const bool window_used, json.GetBool("use_sliding_window", false));
  if (window_used && config->sliding_window == 0)
    return Error::Corrupt(json.where(), ": 'use_sliding_window' is true and 'sliding_window' is null");
  CELER_RETURN_IF_ERROR(QwenExperts(json, "num_experts", 60, 4, 1408, config));
  if (config->moe.experts == 0) return {};
  CELER_ASSIGN(config->moe.shared_intermediate,
               HfInt(json, "shared_expert_intermediate_size", 1, int64_t{1} << 20, 5632));
  return {};
}

Status Qwen2MoeFromGguf(const GgufFile&, DecoderConfig* config) {
  config->moe.normalize_top = false;
  return {};
}

// Its window, if it is used, is that of all layers.
Status Qwen3MoeFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Qwen3Attention(json, config));
  CELER_ASSIGN(config->sliding_window, UsedWindow(json));
  config->windowed_layer.assign(config->layers, true);
  // Newer versions of transformers write Mixtral's name.
  const char* experts = json.Has("num_local_experts") ? "num_local_experts" : "num_experts";
  return QwenExperts(json, experts, 128, 8, 768, config);
}

Status Qwen3MoeFromGguf(const GgufFile& file, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(Qwen3FromGguf(file, config));
  config->moe.normalize_top = true;
  return {};
}

}  // namespace celer::families
