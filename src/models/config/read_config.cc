// From a config.json or the metadata of a GGUF file to a configuration: what all families share, and then what the
// family's own function adds.
#include <algorithm>

#include "models/config/config_keys.h"
#include "models/config/families/families.h"
#include "models/config/family.h"
#include "models/config/rope_config.h"
#include "models/config/usual_keys.h"
#include "models/config/words.h"
#include "models/load/gguf_reader.h"
#include "weights/published/published_source.h"

namespace celer {
namespace {

constexpr int64_t kAny = int64_t{1} << 30;  // Validate() knows the true bounds

// "layer_types" of a family whose layers are what its other keys say: it must say the same.
Status CheckLayerTypes(const JsonFields& json, const DecoderConfig& config) {
  const bool own = config.output_gate || config.chunked_window || !config.layer_shapes.empty() ||
                   config.recurrent.kind == RecurrentKind::kMamba2;
  if (!json.Has("layer_types") || own) return {};
  CELER_ASSIGN(const std::vector<bool> windowed, families::WindowedByType(json, config.layers));
  for (int64_t i = 0; i < config.layers; ++i)
    if (windowed[i] != (config.Window(i) > 0))
      return Error::Unsupported(json.where(), ": 'layer_types' says that layer ", i, " has ",
                                config.Window(i) > 0 ? "full attention" : "a sliding window",
                                ", which models of the type '", config.architecture, "' do not have");
  return {};
}

}  // namespace

Status ReadActivation(const std::string& name, const std::string& path, DecoderConfig* config) {
  if (name == "silu" || name == "swish")
    config->activation = Activation::kSilu;
  else if (name == "gelu")
    config->activation = Activation::kGelu;
  else if (name == "gelu_pytorch_tanh" || name == "gelu_new")
    config->activation = Activation::kGeluTanh;
  else if (name == "relu")
    config->activation = Activation::kRelu;
  else if (name == "relu2")
    config->activation = Activation::kRelu2;
  else
    return Error::Unsupported(path, ": activation '", name,
                              "'; silu, gelu, gelu_pytorch_tanh, relu and relu2 are supported");
  return {};
}

Result<int64_t> HfInt(const JsonFields& json, const char* key, int64_t min, int64_t max, int64_t if_missing,
                      std::optional<int64_t> if_null) {
  if (!json.json().contains(key)) return if_missing;
  if (json.Has(key)) return json.GetInt(key, min, max);
  if (!if_null) return Error::Corrupt(json.where(), ": '", key, "' is null, expected an integer");
  return *if_null;
}

bool IsNested(const nlohmann::json& json) {
  return json.is_object() && json.contains("text_config") && json["text_config"].is_object();
}

namespace {

// Models of text and images whose text model is one of the families, described in "text_config".
struct Wrapper {
  const char* model_type;
  const char* text_type;  // what transformers takes for a "text_config" without a "model_type"
  bool tied_embeddings;   // likewise for a missing "tie_word_embeddings", which stands outside
};
constexpr Wrapper kWrappers[] = {
    {"mistral3", "mistral", true},
    {"gemma3", "gemma3_text", true},
    {"gemma3n", "gemma3n_text", true},
    {"gemma4", "gemma4_text", true},
    {"llama4", "llama4_text", false},
    {"qwen3_5", "qwen3_5_text", false},
    {"qwen3_5_moe", "qwen3_5_moe_text", false},
};

// The text model's description with what the outer one says of it.
template <class Json>
Json TextConfig(const Json& outer, const Wrapper& wrapper) {
  Json text = outer["text_config"];
  if (!text.contains("model_type")) text["model_type"] = wrapper.text_type;
  text["tie_word_embeddings"] = outer.value("tie_word_embeddings", Json(wrapper.tied_embeddings));
  // transformers caps the logits of the text model alone, not of the whole.
  if (wrapper.text_type == std::string_view("gemma3_text")) text.erase("final_logit_softcapping");
  const std::string quantized(published::kConfigKey);
  if (outer.contains(quantized)) text[quantized] = outer[quantized];
  return text;
}

Result<DecoderConfig> TextConfigFromHf(const nlohmann::json& json, const std::string& path) {
  CELER_ASSIGN(const JsonFields given, JsonFields::Of(json, path));
  CELER_ASSIGN(const std::string model_type, given.GetString("model_type"));
  const Family* family = nullptr;
  for (const Family& row : Families())
    if (model_type == row.model_type) family = &row;
  if (!family)
    return Error::Unsupported(path, ": architecture '", model_type, "' is not supported; supported are ",
                              SupportedFamilies());

  const nlohmann::json usual = WithUsualKeys(family->name, json);
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(usual, path));
  DecoderConfig config;
  config.family = family->name;
  config.architecture = model_type;
  const HfDefaults& defaults = family->defaults;
  CELER_ASSIGN(config.layers, HfInt(fields, "num_hidden_layers", 1, 4096, defaults.layers));
  CELER_ASSIGN(config.hidden, HfInt(fields, "hidden_size", 1, kAny, defaults.hidden));
  config.intermediate = defaults.intermediate;
  if (!family->layer_shapes) {
    CELER_ASSIGN(config.intermediate, HfInt(fields, "intermediate_size", 1, kAny, defaults.intermediate));
  }
  CELER_ASSIGN(config.heads, HfInt(fields, "num_attention_heads", 1, kAny, defaults.heads));
  CELER_ASSIGN(config.kv_heads,
               HfInt(fields, "num_key_value_heads", 1, kAny,
                     defaults.kv_heads > 0 ? defaults.kv_heads : config.heads, config.heads));
  const int64_t even = std::max<int64_t>(1, config.hidden / config.heads);
  CELER_ASSIGN(config.head_dim,
               HfInt(fields, "head_dim", 1, kAny, defaults.head_dim > 0 ? defaults.head_dim : even,
                     defaults.head_dim > 0 ? std::nullopt : std::optional(even)));
  CELER_ASSIGN(config.vocab, HfInt(fields, "vocab_size", 1, kAny, defaults.vocab));
  CELER_ASSIGN(config.max_positions,
               HfInt(fields, "max_position_embeddings", 1, kAny, defaults.max_positions));
  CELER_ASSIGN(const double eps, fields.GetDouble("rms_norm_eps", defaults.norm_eps));
  config.norm_eps = static_cast<float>(eps);
  CELER_ASSIGN(config.tied_embeddings, fields.GetBool("tie_word_embeddings", false));
  CELER_ASSIGN(const std::string activation, fields.GetString("hidden_act", "silu"));
  CELER_RETURN_IF_ERROR(ReadActivation(activation, path, &config));
  if (!family->rope_by_kind) {
    CELER_RETURN_IF_ERROR(ReadHfRope(fields, defaults.rope_theta, &config));
  }
  CELER_RETURN_IF_ERROR(family->from_hf(fields, &config));
  if (config.sliding_window == 0) config.windowed_layer.clear();
  CELER_RETURN_IF_ERROR(CheckLayerTypes(fields, config));
  CELER_RETURN_IF_ERROR(CheckHfKeys(fields, &config));
  CELER_RETURN_IF_ERROR(Validate(config, path));
  return config;
}

}  // namespace

nlohmann::ordered_json TextConfigOf(const nlohmann::ordered_json& json) {
  if (IsNested(nlohmann::json(json)))
    for (const Wrapper& wrapper : kWrappers)
      if (json.value("model_type", nlohmann::ordered_json()) == wrapper.model_type)
        return TextConfig(json, wrapper);
  return json;
}

Result<DecoderConfig> ConfigFromHf(const nlohmann::json& json, const std::string& path) {
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, path));
  CELER_ASSIGN(const std::string model_type, fields.GetString("model_type"));
  for (const Wrapper& wrapper : kWrappers)
    if (model_type == wrapper.model_type && IsNested(json))
      return TextConfigFromHf(TextConfig(json, wrapper), path + ": 'text_config'");
  return TextConfigFromHf(json, path);
}

Result<DecoderConfig> ConfigFromGguf(const GgufFile& file, const std::string& path) {
  const auto arch = file.GetString("general.architecture");
  if (!arch) return Error::Corrupt(path, ": metadata key 'general.architecture' is missing");
  const Family* family = nullptr;
  for (const Family& row : Families())
    if (row.gguf && Holds(row.gguf, *arch)) family = &row;
  if (!family)
    return Error::Unsupported(path, ": architecture '", *arch, "' is not supported; supported are ",
                              SupportedFamilies());

  const GgufReader reader(file, path, std::string(*arch));
  DecoderConfig config;
  config.family = family->name;
  config.architecture = *arch;
  CELER_ASSIGN(config.layers, reader.Int("block_count"));
  CELER_ASSIGN(const int64_t predicting, reader.Int("nextn_predict_layers", 0));
  config.layers -= predicting;  // block_count includes those for multi-token prediction
  CELER_ASSIGN(config.hidden, reader.Int("embedding_length"));
  if (config.layers < 1 || config.layers > 4096)
    return Error::Corrupt(path, ": number of layers is ", config.layers, ", expected 1 to 4096");
  const auto same = [&](const char* key) {
    return family->parts_by_layer ? reader.SameWhereAny(key, config.layers)
                                  : reader.SameInAllLayers(key, config.layers);
  };
  if (!family->layer_shapes) {
    CELER_ASSIGN(config.intermediate, same("feed_forward_length"));
  }
  CELER_ASSIGN(config.heads, reader.SameInAllLayers("attention.head_count", config.layers));
  if (config.heads < 1)
    return Error::Corrupt(path, ": ", config.layers, " layers with ", config.heads, " heads");
  config.kv_heads = config.heads;
  if (reader.Has("attention.head_count_kv") && !family->layer_shapes) {
    CELER_ASSIGN(config.kv_heads, same("attention.head_count_kv"));
  }
  CELER_ASSIGN(config.head_dim, reader.Int("attention.key_length", config.hidden / config.heads));
  CELER_ASSIGN(const int64_t value_dim, reader.Int("attention.value_length", config.hidden / config.heads));
  if (value_dim != config.head_dim && !reader.Has("attention.kv_lora_rank"))
    return Error::Unsupported(path, ": keys of ", config.head_dim, " and values of ", value_dim,
                              " elements; they must be equal");
  CELER_ASSIGN(config.max_positions, reader.Int("context_length"));
  const bool rms =
      reader.Has("attention.layer_norm_rms_epsilon") || !reader.Has("attention.layer_norm_epsilon");
  CELER_ASSIGN(const double eps,
               reader.Float(rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"));
  config.norm_eps = static_cast<float>(eps);

  const TensorRecord* embedding = file.Find("token_embd.weight");
  if (!embedding)
    return Error::Corrupt(path,
                          ": tensor 'token_embd.weight' is missing; does the file hold a vocabulary only?");
  config.vocab = embedding->shape[0];
  config.tied_embeddings = file.Find("output.weight") == nullptr;

  CELER_RETURN_IF_ERROR(ReadGgufRope(reader, &config));
  CELER_ASSIGN(config.sliding_window, reader.Int("attention.sliding_window", 0));
  config.windowed_layer.assign(config.layers, true);
  // Whether there are biases, the tensors say.
  config.qkv_bias = file.Find("blk.0.attn_q.bias") != nullptr;
  config.o_bias = file.Find("blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = file.Find("blk.0.ffn_up.bias") != nullptr;
  config.head_bias = file.Find("output.bias") != nullptr;

  CELER_ASSIGN(config.moe.experts, reader.Int("expert_count", 0));
  if (config.moe.experts > 0) {
    CELER_ASSIGN(config.moe.experts_per_token, reader.Int("expert_used_count"));
    CELER_ASSIGN(config.moe.intermediate, reader.Int("expert_feed_forward_length", config.intermediate));
    for (int64_t i = 0; i < config.layers; ++i)
      config.moe.sparse_layer.push_back(file.Find("blk." + std::to_string(i) + ".ffn_gate_inp.weight") !=
                                        nullptr);
    if (const TensorRecord* shared = file.Find("blk.0.ffn_gate_shexp.weight")) {
      CELER_ASSIGN(config.moe.shared_intermediate,
                   reader.Int("expert_shared_feed_forward_length", shared->shape[0]));
    }
  }
  CELER_RETURN_IF_ERROR(family->from_gguf(file, &config));
  CELER_RETURN_IF_ERROR(CheckGgufKeys(reader, &config));
  CELER_RETURN_IF_ERROR(Validate(config, path));
  return config;
}

}  // namespace celer
