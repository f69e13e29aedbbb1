// Gemma 4 and Gemma 3n: layers with full attention have another shape than those with a sliding window, the last ones
// read keys and values of earlier ones, and each layer has embeddings of its own. Some of Gemma 4 have experts beside
// their dense blocks; Gemma 3n has several residual streams.
#include <algorithm>
#include <cmath>

#include "io/file/printable.h"
#include "models/config/families/families.h"
#include "models/config/rope_config.h"
#include "models/load/gguf_reader.h"

namespace celer::families {
namespace {

constexpr int64_t kAny = int64_t{1} << 30;  // Validate() knows the true bounds

void CommonOfBoth(DecoderConfig* config) {
  config->embedding_scale = std::sqrt(static_cast<float>(config->hidden));
  config->post_norm = true;
  config->qk_norm = true;
  config->v_norm = true;
  config->attention_scale = 1;
}

void PerLayerEmbedding(int64_t dim, int64_t vocab, DecoderConfig* config) {
  config->per_layer_dim = dim;
  config->per_layer_vocab = dim > 0 ? vocab : 0;
  config->per_layer_scale = dim > 0 ? std::sqrt(static_cast<float>(dim)) : 1;
}

// Layers from `first` on read what the last layer of their kind before it keeps.
Status ShareKeys(int64_t first, const std::string& where, DecoderConfig* config) {
  if (first == config->layers) return {};
  if (first < 1 || first > config->layers)
    return Error::Corrupt(where, ": ", config->layers - first, " of ", config->layers,
                          " layers share keys and values, expected 0 to ", config->layers - 1);
  const auto windowed = [&](int64_t i) { return config->Window(i) > 0; };
  for (int64_t i = first; i < config->layers; ++i) {
    int64_t from = first - 1;
    while (from >= 0 && windowed(from) != windowed(i)) --from;
    if (from < 0)
      return Error::Corrupt(where, ": layer ", i,
                            " shares keys and values, and no layer before it with attention of that kind "
                            "has any of its own");
    config->layer_shapes[i].kv_from = from;
  }
  return {};
}

// Windows of all layers but every `period`-th, or as "layer_types" says.
Status KindsOfLayers(const JsonFields& json, int64_t period, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(HfWindows(json, period, config));
  CELER_ASSIGN(config->sliding_window, HfInt(json, "sliding_window", 1, kAny, 512));
  return {};
}

Status AllOfShape(const JsonFields& json, DecoderConfig* config) {
  for (int64_t i = 0; i < config->layers; ++i)
    config->layer_shapes.push_back({.head_dim = config->head_dim,
                                    .kv_heads = config->kv_heads,
                                    .intermediate = config->intermediate,
                                    .kv_from = i});
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  CELER_ASSIGN(const std::string activation, json.GetString("hidden_activation", "gelu_pytorch_tanh"));
  return ReadActivation(activation, json.where(), config);
}

// "per_layer_config": {"5": {"head_dim": 512}}, as newer files say what differs in some layers.
Status ShapesByLayer(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const JsonFields layers, json.GetObject("per_layer_config"));
  for (int64_t i = 0; i < config->layers; ++i) {
    const std::string key = std::to_string(i);
    if (!layers.Has(key)) continue;
    CELER_ASSIGN(const JsonFields fields, layers.GetObject(key));
    LayerShape& shape = config->layer_shapes[i];
    CELER_ASSIGN(shape.head_dim, HfInt(fields, "head_dim", 1, kAny, shape.head_dim));
    CELER_ASSIGN(shape.kv_heads, HfInt(fields, "num_key_value_heads", 1, kAny, shape.kv_heads));
    for (const auto& item : fields.json().items())
      if (item.key() != "head_dim" && item.key() != "num_key_value_heads")
        return Error::Unsupported(fields.where(), ": '", Printable(item.key(), 60),
                                  "', which is not implemented as a number of each layer");
  }
  return {};
}

Status ShapesOfFullLayers(const JsonFields& json, bool values_are_keys, DecoderConfig* config) {
  CELER_ASSIGN(const int64_t head_dim, HfInt(json, "global_head_dim", 1, kAny, 512));
  CELER_ASSIGN(const int64_t kv_heads,
               HfInt(json, "num_global_key_value_heads", 1, kAny, config->kv_heads, config->kv_heads));
  for (int64_t i = 0; i < config->layers; ++i) {
    if (config->Window(i) > 0) continue;
    config->layer_shapes[i].head_dim = head_dim;
    if (values_are_keys) config->layer_shapes[i].kv_heads = kv_heads;
  }
  return {};
}

Status Shapes(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const bool values_are_keys, json.GetBool("attention_k_eq_v", false));
  CELER_RETURN_IF_ERROR(json.Has("per_layer_config") ? ShapesByLayer(json, config)
                                                     : ShapesOfFullLayers(json, values_are_keys, config));
  for (int64_t i = 0; i < config->layers; ++i)
    config->layer_shapes[i].values_are_keys = values_are_keys && config->Window(i) == 0;
  CELER_ASSIGN(const int64_t shared, HfInt(json, "num_kv_shared_layers", 0, kAny, 0));
  CELER_RETURN_IF_ERROR(ShareKeys(config->layers - shared, json.where(), config));
  CELER_ASSIGN(const bool wide, json.GetBool("use_double_wide_mlp", false));
  for (int64_t i = config->layers - shared; wide && i < config->layers; ++i)
    config->layer_shapes[i].intermediate = 2 * config->intermediate;
  return {};
}

void BesideDense(DecoderConfig* config) {
  config->moe.beside_dense = true;
  config->moe.sparse_layer.assign(config->layers, true);
}

Status Experts(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const bool experts, json.GetBool("enable_moe_block", false));
  if (!experts) return {};
  MoeConfig& moe = config->moe;
  CELER_ASSIGN(moe.experts, json.GetInt("num_experts", 1, kAny));
  CELER_ASSIGN(moe.experts_per_token, json.GetInt("top_k_experts", 1, kAny));
  CELER_ASSIGN(moe.intermediate, json.GetInt("moe_intermediate_size", 1, kAny));
  BesideDense(config);
  return {};
}

// Of normally distributed numbers, the share that lies below so many standard deviations.
float NormalShare(float deviations) {
  return std::erfc(-deviations / std::sqrt(2.0f)) / 2;
}

// "activation_sparsity_pattern": a share for each layer; without one 0.95 in the first ten of more than ten layers.
Status ReadSparsity(const JsonFields& json, DecoderConfig* config) {
  constexpr int64_t kSparse = 10;
  std::vector<float>& sparsity = config->gate_sparsity;
  const nlohmann::json* const shares = json.Find("activation_sparsity_pattern");
  if (!shares) {
    if (config->layers > kSparse) sparsity.assign(kSparse, 0.95f);
    sparsity.resize(config->layers, 0.0f);
    return {};
  }
  for (const nlohmann::json& share : *shares)
    sparsity.push_back(share.is_number() ? share.get<float>() : -1.0f);
  if (!shares->is_array() || std::ssize(sparsity) != config->layers)
    return Error::Corrupt(json.where(), ": 'activation_sparsity_pattern' is ",
                          Printable(JsonText(*shares), 60), ", expected a share for each of ", config->layers,
                          " layers");
  return {};
}

Result<float> FinalSoftcap(const JsonFields& json, double if_missing) {
  if (!json.json().contains("final_logit_softcapping")) return static_cast<float>(if_missing);
  CELER_ASSIGN(const double cap, json.GetDouble("final_logit_softcapping", 0));
  return static_cast<float>(cap);
}

}  // namespace

Status Gemma4FromHf(const JsonFields& json, DecoderConfig* config) {
  CommonOfBoth(config);
  config->embedding_scale_rounded = true;
  config->layer_scale = true;
  CELER_ASSIGN(config->intermediate, HfInt(json, "intermediate_size", 1, kAny, config->intermediate));
  CELER_RETURN_IF_ERROR(KindsOfLayers(json, 6, config));
  if (config->windowed_layer.back()) {
    config->windowed_layer.back() = false;
    if (json.Has("layer_types"))
      config->warnings.push_back(json.where() +
                                 ": 'layer_types' ends with \"sliding_attention\"; the last layer has full "
                                 "attention nevertheless, as in transformers");
  }
  CELER_RETURN_IF_ERROR(AllOfShape(json, config));
  CELER_RETURN_IF_ERROR(Shapes(json, config));
  CELER_RETURN_IF_ERROR(Experts(json, config));
  CELER_ASSIGN(config->logit_softcap, FinalSoftcap(json, 0));
  CELER_ASSIGN(const int64_t dim, HfInt(json, "hidden_size_per_layer_input", 0, kAny, 256, 0));
  CELER_ASSIGN(const int64_t vocab, HfInt(json, "vocab_size_per_layer_input", 1, kAny, 262144));
  PerLayerEmbedding(dim, vocab, config);
  if (const nlohmann::json* both = json.Find("use_bidirectional_attention"); both && *both != "vision")
    return Error::Unsupported(json.where(), ": 'use_bidirectional_attention' is ",
                              Printable(JsonText(*both), 60), "; text is read from left to right alone");
  return ReadHfRopeOfKinds(json, 1e6, 1e4, config);
}

void Gemma4HfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Rename("model.layers.%.post_attention_layernorm.weight", to.attention_post_norm);
  rules->Rename("model.layers.%.pre_feedforward_layernorm.weight", to.ffn_norm);
  rules->Rename("model.layers.%.post_feedforward_layernorm.weight", to.ffn_post_norm);
  if (c.moe.experts == 0) return;
  const std::string in_file = "model.layers.%.experts.", expert = in_file + "#.";
  rules->Split(in_file + "gate_up_proj", {{expert + "gate_proj.weight", c.moe.intermediate},
                                          {expert + "up_proj.weight", c.moe.intermediate}});
  rules->Split(in_file + "down_proj", {{expert + "down_proj.weight", c.hidden}});
}

namespace {

Status GgufShapes(const GgufReader& reader, int64_t shared_if_missing, DecoderConfig* config) {
  const int64_t layers = config->layers;
  CELER_ASSIGN(const std::vector<int64_t> kv_heads, reader.InLayers("attention.head_count_kv", layers));
  CELER_ASSIGN(const std::vector<int64_t> intermediate, reader.InLayers("feed_forward_length", layers));
  CELER_ASSIGN(const int64_t full_dim, reader.Int("attention.key_length", config->head_dim));
  CELER_ASSIGN(config->head_dim, reader.Int("attention.key_length_swa", full_dim));
  config->intermediate = *std::max_element(intermediate.begin(), intermediate.end());
  config->kv_heads = kv_heads[0];
  CELER_ASSIGN(config->windowed_layer, reader.WindowedLayers(layers, 5));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    config->layer_shapes.push_back({.head_dim = config->Window(i) > 0 ? config->head_dim : full_dim,
                                    .kv_heads = kv_heads[i],
                                    .intermediate = intermediate[i],
                                    .kv_from = i,
                                    .values_are_keys = !reader.file().Find(layer + "attn_v.weight")});
  }
  CELER_ASSIGN(const int64_t shared, reader.Int("attention.shared_kv_layers", shared_if_missing));
  return ShareKeys(layers - shared, reader.path(), config);
}

Status GgufPerLayer(const GgufReader& reader, double cap_if_missing, DecoderConfig* config) {
  CELER_ASSIGN(const int64_t dim, reader.Int("embedding_length_per_layer_input", 0));
  const TensorRecord* const table = reader.file().Find("per_layer_token_embd.weight");
  PerLayerEmbedding(dim, table ? table->shape[0] : config->vocab, config);
  CELER_ASSIGN(const double cap, reader.Float("final_logit_softcapping", cap_if_missing));
  config->logit_softcap = static_cast<float>(cap);
  return {};
}

Status GgufLocalRope(const GgufReader& reader, double theta, DecoderConfig* config) {
  if (config->sliding_window == 0) return {};
  RopeConfig& local = config->local_rope.emplace();
  CELER_ASSIGN(local.dim, reader.Int("rope.dimension_count_swa", config->head_dim));
  CELER_ASSIGN(local.theta, reader.Float("rope.freq_base_swa", theta));
  return {};
}

}  // namespace

// Which pairs of full layers turn is said by "rope_freqs.weight".
Status Gemma4FromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), "gemma4");
  CommonOfBoth(config);
  config->activation = Activation::kGeluTanh;
  config->layer_scale = true;
  CELER_RETURN_IF_ERROR(GgufShapes(reader, 0, config));
  CELER_RETURN_IF_ERROR(GgufPerLayer(reader, 0, config));
  CELER_RETURN_IF_ERROR(GgufLocalRope(reader, 1e4, config));
  if (config->moe.experts == 0) return {};
  const std::vector<bool>& sparse = config->moe.sparse_layer;
  if (std::find(sparse.begin(), sparse.end(), false) != sparse.end())
    return Error::Unsupported(file.source(), ": experts in some layers alone, which no Gemma 4 has");
  BesideDense(config);
  return {};
}

void Gemma4GgufTensors(const DecoderConfig& c, TensorRules* rules) {
  if (c.moe.experts == 0) return;
  rules->Split("blk.%.ffn_gate_up_exps.weight", {{"blk.%.ffn_gate_exps.weight", c.moe.intermediate},
                                                 {"blk.%.ffn_up_exps.weight", c.moe.intermediate}});
}

Status Gemma3nFromHf(const JsonFields& json, DecoderConfig* config) {
  CommonOfBoth(config);
  config->embedding_scale_rounded = true;
  CELER_RETURN_IF_ERROR(KindsOfLayers(json, 5, config));
  std::vector<int64_t> widths(config->layers, config->intermediate);
  if (json.Has("intermediate_size")) {
    CELER_ASSIGN(widths, json.GetInts("intermediate_size"));
    if (widths.size() == 1) widths.resize(config->layers, widths[0]);
  }
  if (std::ssize(widths) != config->layers)
    return Error::Corrupt(json.where(), ": 'intermediate_size' has ", widths.size(), " numbers for ",
                          config->layers, " layers");
  config->intermediate = *std::max_element(widths.begin(), widths.end());
  CELER_RETURN_IF_ERROR(AllOfShape(json, config));
  for (int64_t i = 0; i < config->layers; ++i) config->layer_shapes[i].intermediate = widths[i];
  CELER_ASSIGN(const int64_t shared, HfInt(json, "num_kv_shared_layers", 0, kAny, 15));
  CELER_RETURN_IF_ERROR(ShareKeys(config->layers - shared, json.where(), config));
  CELER_RETURN_IF_ERROR(ReadSparsity(json, config));
  CELER_ASSIGN(config->logit_softcap, FinalSoftcap(json, 30));
  CELER_ASSIGN(const int64_t dim, HfInt(json, "hidden_size_per_layer_input", 1, kAny, 256));
  CELER_ASSIGN(const int64_t vocab, HfInt(json, "vocab_size_per_layer_input", 1, kAny, 262144));
  PerLayerEmbedding(dim, vocab, config);
  CELER_ASSIGN(config->laurel_rank, HfInt(json, "laurel_rank", 1, kAny, 64));
  AltUpConfig& altup = config->altup;
  CELER_ASSIGN(altup.streams, HfInt(json, "altup_num_inputs", 1, kAny, 4));
  CELER_ASSIGN(altup.active, HfInt(json, "altup_active_idx", 0, kAny, 0));
  CELER_ASSIGN(altup.scale_output, json.GetBool("altup_correct_scale", true));
  CELER_ASSIGN(const double theta, json.GetDouble("rope_theta", 1e6));
  CELER_ASSIGN(const double local_theta, json.GetDouble("rope_local_base_freq", 1e4));
  return ReadHfRopeOfKinds(json, theta, local_theta, config);
}

Status Gemma3nFromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), "gemma3n");
  CommonOfBoth(config);
  config->activation = Activation::kGeluTanh;
  constexpr int64_t kOwnKeys = 20;  // as llama.cpp has it
  CELER_RETURN_IF_ERROR(GgufShapes(reader, std::max<int64_t>(0, config->layers - kOwnKeys), config));
  for (LayerShape& shape : config->layer_shapes) shape.values_are_keys = false;
  CELER_RETURN_IF_ERROR(GgufPerLayer(reader, 30, config));
  CELER_RETURN_IF_ERROR(GgufLocalRope(reader, 1e4, config));
  // What llama.cpp has as constants.
  constexpr int64_t kSparse = 10;
  const auto deviations = file.GetFloatArray("gemma3n.activation_sparsity_scale");
  for (int64_t i = 0; i < config->layers; ++i)
    config->gate_sparsity.push_back(deviations && i < std::ssize(*deviations) ? NormalShare((*deviations)[i])
                                    : i < kSparse                             ? 0.95f
                                                                              : 0.0f);
  CELER_ASSIGN(config->altup.streams, reader.Int("altup.num_inputs", 4));
  CELER_ASSIGN(config->altup.active, reader.Int("altup.active_idx", 0));
  const TensorRecord* const laurel = file.Find("blk.0.laurel_l.weight");
  config->laurel_rank = laurel ? laurel->shape[0] : 0;
  return {};
}

}  // namespace celer::families
