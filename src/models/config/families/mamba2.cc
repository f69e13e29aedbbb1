// Families with Mamba-2 layers: Granite 4 and Bamba, whose layers have attention or a Mamba-2 mixer before a feed-forward
// block, and Nemotron-H, whose layers have one of the three alone.
#include <algorithm>
#include <cmath>
#include <optional>

#include "io/file/printable.h"
#include "models/config/families/families.h"
#include "models/load/gguf_reader.h"
#include "models/recurrent_state.h"

namespace celer::families {
namespace {

constexpr int64_t kMostMamba = int64_t{1} << 20;
constexpr int64_t kMostMambaLayers = 4096, kMostMambaExperts = 65536;

enum class MambaLayerKind { kMamba, kAttention, kMlp, kExperts };

// Also by the names that transformers had before.
std::optional<MambaLayerKind> KindNamed(const std::string& name) {
  if (name == "linear_attention" || name == "mamba" || name == "M") return MambaLayerKind::kMamba;
  if (name == "full_attention" || name == "attention" || name == "*") return MambaLayerKind::kAttention;
  if (name == "mlp" || name == "-") return MambaLayerKind::kMlp;
  if (name == "moe" || name == "E") return MambaLayerKind::kExperts;
  return std::nullopt;
}

// A list of names, or a text of signs.
Result<std::vector<MambaLayerKind>> LayerKinds(const JsonFields& json, const char* key) {
  const nlohmann::json& value = *json.Find(key);
  std::vector<std::string> names;
  if (value.is_string()) {
    for (const char sign : value.get<std::string>()) names.emplace_back(1, sign);
  } else if (value.is_array()) {
    for (const nlohmann::json& name : value)
      names.push_back(name.is_string() ? name.get<std::string>() : JsonText(name));
  }
  if (names.empty() || std::ssize(names) > kMostMambaLayers)
    return Error::Corrupt(json.where(), ": '", key, "' names ", names.size(), " layers, expected 1 to ",
                          kMostMambaLayers);
  std::vector<MambaLayerKind> kinds;
  for (const std::string& name : names) {
    const auto kind = KindNamed(name);
    if (!kind)
      return Error::Unsupported(json.where(), ": '", key, "' names a layer \"", Printable(name, 60),
                                "\"; supported are linear_attention, full_attention, mlp and moe");
    kinds.push_back(*kind);
  }
  return kinds;
}

void SetRecurrentLayers(const std::vector<MambaLayerKind>& kinds, DecoderConfig* config) {
  std::vector<bool>& layers = config->recurrent.layer;
  layers.clear();
  for (const MambaLayerKind kind : kinds) layers.push_back(kind == MambaLayerKind::kMamba);
  if (std::find(layers.begin(), layers.end(), true) == layers.end()) layers.clear();
}

// A number, or an infinite one as transformers writes it.
Result<double> StepBound(const JsonFields& json, const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  const bool infinite = value.is_object() && value.value("__float__", nlohmann::json()) == "Infinity";
  if (infinite) return 0.0;
  return Error::Corrupt(json.where(), ": 'time_step_limit' holds ", Printable(JsonText(value), 60),
                        ", expected two numbers");
}

Status ReadStepLimit(const JsonFields& json, RecurrentConfig* r) {
  if (!json.Has("time_step_limit")) return {};
  const nlohmann::json& limit = *json.Find("time_step_limit");
  if (!limit.is_array() || limit.size() != 2)
    return Error::Corrupt(json.where(), ": 'time_step_limit' is ", Printable(JsonText(limit), 60),
                          ", expected two numbers");
  CELER_ASSIGN(const double min, StepBound(json, limit[0]));
  CELER_ASSIGN(const double max, StepBound(json, limit[1]));
  if (limit[1].is_number() && max <= 0)
    return Error::Unsupported(json.where(), ": 'time_step_limit' ends at ", max,
                              ", which leaves no time steps; expected a positive number");
  r->step_min = static_cast<float>(min);
  r->step_max = static_cast<float>(max);
  return {};
}

// The convolution has the activation of the feed-forward blocks or its own.
Status NeedSilu(const JsonFields& json, const char* key, bool silu) {
  if (silu) return {};
  return Error::Unsupported(json.where(), ": '", key, "' is not silu, which Mamba-2 layers need here");
}

// The keys of Granite 4 and Bamba. recurrent.layer is filled in.
Status ReadMamba(const JsonFields& json, DecoderConfig* config) {
  RecurrentConfig& r = config->recurrent;
  CELER_ASSIGN(r.value_heads, HfInt(json, "mamba_n_heads", 1, kMostMamba, 128));
  CELER_ASSIGN(r.key_heads, HfInt(json, "mamba_n_groups", 1, kMostMamba, 1));
  CELER_ASSIGN(r.key_dim, HfInt(json, "mamba_d_state", 1, kMostMamba, 256));
  CELER_ASSIGN(r.conv_kernel, HfInt(json, "mamba_d_conv", 1, kMostMamba, 4));
  CELER_ASSIGN(const int64_t expand, HfInt(json, "mamba_expand", 1, kMostMamba, 2));
  const int64_t even = std::max<int64_t>(1, expand * config->hidden / r.value_heads);
  const nlohmann::json* dim = json.Find("mamba_d_head");
  r.value_dim = even;
  if (dim && *dim != "auto") {
    CELER_ASSIGN(r.value_dim, HfInt(json, "mamba_d_head", 1, kMostMamba, even));
  }
  if (r.value_dim * r.value_heads != expand * config->hidden)
    return Error::Corrupt(json.where(), ": ", r.value_heads, " heads of ", r.value_dim,
                          " in Mamba-2 layers ('mamba_n_heads', 'mamba_d_head') are not ", expand, " x ",
                          config->hidden, " ('mamba_expand', 'hidden_size')");
  CELER_ASSIGN(r.conv_bias, json.GetBool("mamba_conv_bias", true));
  CELER_ASSIGN(r.bias, json.GetBool("mamba_proj_bias", false));
  CELER_RETURN_IF_ERROR(ReadStepLimit(json, &r));
  if (r.layer.empty()) return {};
  return NeedSilu(json, "hidden_act", config->activation == Activation::kSilu);
}

Status ReadAttentionBias(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  return {};
}

Status GraniteHybridExperts(const JsonFields& json, DecoderConfig* config) {
  MoeConfig& moe = config->moe;
  CELER_ASSIGN(const int64_t shared, HfInt(json, "shared_intermediate_size", 1, kMostMamba, 1024));
  CELER_ASSIGN(moe.experts, HfInt(json, "num_local_experts", 0, kMostMambaExperts, 8));
  if (moe.experts == 0) {  // the shared one alone is a dense block
    config->intermediate = shared;
    return {};
  }
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, moe.experts, 2));
  moe.intermediate = config->intermediate;
  moe.shared_intermediate = shared;
  moe.normalize_top = true;  // the same as a softmax over the chosen experts' logits alone
  moe.shared_gated = false;
  moe.sparse_layer.assign(config->layers, true);
  return {};
}

// z | x | B | C | dt, and what has more dimensions than it needs.
void MambaTensors(const std::string& prefix, const std::string& out, const DecoderConfig& c,
                  TensorRules* rules) {
  const RecurrentConfig& r = c.recurrent;
  if (r.layer.empty()) return;
  const PartNames& to = rules->parts();
  const int64_t values = r.value_heads * r.value_dim;
  rules->Split(prefix + "in_proj.weight",
               {{to.state_z, values}, {to.state_mixed, ConvChannels(r)}, {to.state_a, r.value_heads}});
  rules->Split(
      prefix + "in_proj.bias",
      {{to.state_z_bias, values}, {to.state_mixed_bias, ConvChannels(r)}, {to.state_a_bias, r.value_heads}});
  rules->SplitChannels(prefix + "conv1d.weight", to.state_conv, r.conv_kernel);
  rules->Rename(prefix + "conv1d.bias", to.state_conv_bias);
  rules->Rename(prefix + "A_log", to.state_a_log);
  rules->Rename(prefix + "D", to.state_skip);
  rules->Rename(prefix + "dt_bias", to.state_dt_bias);
  rules->Rename(prefix + "norm.weight", to.state_norm);
  RenamePair(out, to.state_out, to.state_out_bias, rules);
}

}  // namespace

Status GraniteHybridFromHf(const JsonFields& json, DecoderConfig* config) {
  config->recurrent.kind = RecurrentKind::kMamba2;
  CELER_RETURN_IF_ERROR(ReadAttentionBias(json, config));
  CELER_RETURN_IF_ERROR(GraniteScales(json, config));
  const char* const key = json.Has("layers_block_type") ? "layers_block_type" : "layer_types";
  std::vector<MambaLayerKind> kinds(config->layers, MambaLayerKind::kMamba);
  if (json.Has(key)) {
    CELER_ASSIGN(kinds, LayerKinds(json, key));
  }
  const bool others = std::any_of(kinds.begin(), kinds.end(), [](MambaLayerKind kind) {
    return kind != MambaLayerKind::kMamba && kind != MambaLayerKind::kAttention;
  });
  if (std::ssize(kinds) != config->layers || others)
    return Error::Unsupported(json.where(), ": '", key, "' must name ", config->layers,
                              " layers, each linear_attention or full_attention");
  SetRecurrentLayers(kinds, config);
  CELER_RETURN_IF_ERROR(ReadMamba(json, config));
  CELER_ASSIGN(const std::string position, json.GetString("position_embedding_type", "nope"));
  if (position != "rope") WithoutRope(config);
  return GraniteHybridExperts(json, config);
}

void GraniteHybridHfTensors(const DecoderConfig& c, TensorRules* rules) {
  MambaTensors("model.layers.%.mamba.", "model.layers.%.mamba.out_proj", c, rules);
  if (c.moe.experts > 0) return GraniteMoeHfTensors(c, rules);
  const std::string shared = "model.layers.%.shared_mlp.";
  const PartNames& to = rules->parts();
  rules->Split(shared + "input_linear.weight", {{to.gate, c.intermediate}, {to.up, c.intermediate}});
  rules->Rename(shared + "output_linear.weight", to.down);
}

Status BambaFromHf(const JsonFields& json, DecoderConfig* config) {
  config->recurrent.kind = RecurrentKind::kMamba2;
  CELER_RETURN_IF_ERROR(ReadAttentionBias(json, config));
  CELER_ASSIGN(config->mlp_bias, json.GetBool("mlp_bias", false));
  std::vector<MambaLayerKind> kinds(config->layers, MambaLayerKind::kMamba);
  if (json.Has("attn_layer_indices")) {
    CELER_ASSIGN(const std::vector<int64_t> attention, json.GetInts("attn_layer_indices"));
    for (const int64_t layer : attention)
      if (layer >= 0 && layer < config->layers) kinds[layer] = MambaLayerKind::kAttention;
  }
  SetRecurrentLayers(kinds, config);
  return ReadMamba(json, config);
}

void BambaHfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  MambaTensors("model.layers.%.mamba.", "model.layers.%.mamba.out_proj", c, rules);
  rules->Rename("model.final_layernorm.weight", to.norm);
  rules->Rename("model.layers.%.pre_ff_layernorm.weight", to.ffn_norm);
  const std::string mlp = "model.layers.%.feed_forward.";
  RenamePair(mlp + "gate_proj", to.gate, to.gate_bias, rules);
  RenamePair(mlp + "up_proj", to.up, to.up_bias, rules);
  RenamePair(mlp + "down_proj", to.down, to.down_bias, rules);
}

namespace {

// One part to a layer.
void SetNemotronLayers(const std::vector<MambaLayerKind>& kinds, DecoderConfig* config) {
  config->layers = std::ssize(kinds);
  SetRecurrentLayers(kinds, config);
  for (std::vector<bool>* parts : {&config->mixer_layer, &config->ffn_layer, &config->moe.sparse_layer})
    parts->clear();
  for (const MambaLayerKind kind : kinds) {
    const bool mixer = kind == MambaLayerKind::kMamba || kind == MambaLayerKind::kAttention;
    config->mixer_layer.push_back(mixer);
    config->ffn_layer.push_back(!mixer);
    config->moe.sparse_layer.push_back(kind == MambaLayerKind::kExperts);
  }
  WithoutRope(config);
}

Status NemotronHLayers(const JsonFields& json, DecoderConfig* config) {
  std::vector<MambaLayerKind> kinds = {MambaLayerKind::kMamba, MambaLayerKind::kExperts,
                                       MambaLayerKind::kAttention, MambaLayerKind::kMlp};
  for (const char* key : {"layers_block_type", "layer_types", "hybrid_override_pattern"})
    if (json.Has(key)) {
      CELER_ASSIGN(kinds, LayerKinds(json, key));
      break;
    }
  SetNemotronLayers(kinds, config);
  return {};
}

Status NemotronHExperts(const JsonFields& json, DecoderConfig* config) {
  MoeConfig& moe = config->moe;
  if (std::find(moe.sparse_layer.begin(), moe.sparse_layer.end(), true) == moe.sparse_layer.end()) return {};
  const char* const key = json.Has("num_local_experts") ? "num_local_experts" : "n_routed_experts";
  CELER_ASSIGN(moe.experts, HfInt(json, key, 1, kMostMambaExperts, 8));
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, moe.experts, 2));
  CELER_ASSIGN(moe.intermediate, HfInt(json, "moe_intermediate_size", 1, kMostMamba, 7688));
  CELER_ASSIGN(moe.shared_intermediate,
               HfInt(json, "moe_shared_expert_intermediate_size", 1, kMostMamba, 7688));
  return DeepSeekRouterFromHf(json, config);
}

}  // namespace

Status NemotronHFromHf(const JsonFields& json, DecoderConfig* config) {
  RecurrentConfig& r = config->recurrent;
  r.kind = RecurrentKind::kMamba2;
  CELER_RETURN_IF_ERROR(NemotronHLayers(json, config));
  CELER_ASSIGN(r.value_heads, HfInt(json, "mamba_num_heads", 1, kMostMamba, 128));
  CELER_ASSIGN(r.value_dim, HfInt(json, "mamba_head_dim", 1, kMostMamba, 64));
  CELER_ASSIGN(r.key_heads, HfInt(json, "n_groups", 1, kMostMamba, 8));
  CELER_ASSIGN(r.key_dim, HfInt(json, "ssm_state_size", 1, kMostMamba, 128));
  CELER_ASSIGN(r.conv_kernel, HfInt(json, "conv_kernel", 1, kMostMamba, 4));
  CELER_ASSIGN(r.conv_bias, json.GetBool("use_conv_bias", true));
  CELER_ASSIGN(r.bias, json.GetBool("use_bias", false));
  CELER_ASSIGN(const double min, json.GetDouble("time_step_min", 0.001));
  r.step_min = static_cast<float>(min);
  r.norm_groups = r.key_heads;
  CELER_ASSIGN(const std::string activation, json.GetString("mamba_hidden_act", "silu"));
  CELER_RETURN_IF_ERROR(NeedSilu(json, "mamba_hidden_act", activation == "silu" || activation == "swish"));
  CELER_ASSIGN(const bool mlp_bias, json.GetBool("mlp_bias", false));
  PlainMlp(mlp_bias, config);
  config->tied_embeddings = false;  // whatever the file says
  return NemotronHExperts(json, config);
}

void NemotronHHfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  const std::string mixer = "model.layers.%.mixer.";
  rules->Prefix("backbone.", "model.");
  rules->Skip("mtp.", "drafts of several tokens, which are not used");
  rules->Rename("model.embeddings.weight", to.embedding);
  rules->Rename("model.norm_f.weight", to.norm);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    rules->Rename(layer + "norm.weight",
                  layer + (c.HasMixer(i) ? "input_layernorm.weight" : "post_attention_layernorm.weight"));
  }
  MambaTensors(mixer, mixer + "out_proj", c, rules);
  rules->Rename(mixer + "q_proj.weight", to.q);
  rules->Rename(mixer + "k_proj.weight", to.k);
  rules->Rename(mixer + "v_proj.weight", to.v);
  rules->Rename(mixer + "o_proj.weight", to.o);
  RenamePair(mixer + "up_proj", to.up, to.up_bias, rules);
  RenamePair(mixer + "down_proj", to.down, to.down_bias, rules);
  const std::string experts = mixer + "experts.";
  rules->SplitIfThere(experts + "up_proj", {{experts + "#.up_proj.weight", c.moe.intermediate}});
  rules->SplitIfThere(experts + "down_proj", {{experts + "#.down_proj.weight", c.hidden}});
}

namespace {

// What the first of these layers has tells of all.
std::string FirstOfLayers(const std::vector<bool>& layers) {
  const auto found = std::find(layers.begin(), layers.end(), true);
  return "blk." + std::to_string(found - layers.begin()) + ".";
}

// Layers without keys and values are recurrent ones, or those without attention.
Status GgufMamba(const GgufFile& file, const GgufReader& reader, const std::vector<MambaLayerKind>& kinds,
                 DecoderConfig* config) {
  RecurrentConfig& r = config->recurrent;
  r.kind = RecurrentKind::kMamba2;
  SetRecurrentLayers(kinds, config);
  CELER_ASSIGN(r.conv_kernel, reader.Int("ssm.conv_kernel"));
  CELER_ASSIGN(r.key_dim, reader.Int("ssm.state_size"));
  CELER_ASSIGN(r.key_heads, reader.Int("ssm.group_count"));
  CELER_ASSIGN(r.value_heads, reader.Int("ssm.time_step_rank"));
  CELER_ASSIGN(const int64_t inner, reader.Int("ssm.inner_size"));
  if (r.value_heads < 1 || inner % r.value_heads != 0)
    return Error::Corrupt(reader.path(), ": ", r.value_heads, " heads of Mamba-2 layers for ", inner,
                          " values");
  r.value_dim = inner / r.value_heads;
  r.conv_bias = !r.layer.empty() && file.Find(FirstOfLayers(r.layer) + "ssm_conv1d.bias") != nullptr;
  std::vector<bool> attention;
  for (const MambaLayerKind kind : kinds) attention.push_back(kind == MambaLayerKind::kAttention);
  const std::string first = FirstOfLayers(attention);
  config->qkv_bias = file.Find(first + "attn_q.bias") != nullptr;
  config->o_bias = file.Find(first + "attn_output.bias") != nullptr;
  return {};
}

void MambaGgufTensors(const DecoderConfig& c, TensorRules* rules) {
  const RecurrentConfig& r = c.recurrent;
  if (r.layer.empty()) return;
  const PartNames& to = rules->parts();
  const int64_t values = r.value_heads * r.value_dim;
  rules->Split("blk.%.ssm_in.weight",
               {{to.state_z, values}, {to.state_mixed, ConvChannels(r)}, {to.state_a, r.value_heads}});
  rules->SplitElements(to.state_conv, {{to.state_conv, r.conv_kernel}});
  rules->SplitElements(to.state_a_log, {{to.state_a_log, 1}});
  rules->SplitElements(to.state_skip, {{to.state_skip, 1}});
  // Converters write as many rows as there are groups.
  rules->SplitElements(to.state_norm, {{to.state_norm, values / r.key_heads}});
}

}  // namespace

Status GraniteHybridFromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), config->architecture);
  CELER_RETURN_IF_ERROR(GraniteFromGguf(file, config));
  CELER_ASSIGN(const std::vector<int64_t> kv, reader.InOwnLayers("attention.head_count_kv", config->layers));
  std::vector<MambaLayerKind> kinds;
  for (const int64_t heads : kv)
    kinds.push_back(heads == 0 ? MambaLayerKind::kMamba : MambaLayerKind::kAttention);
  CELER_RETURN_IF_ERROR(GgufMamba(file, reader, kinds, config));
  if (const auto rope = file.GetBool(config->architecture + ".rope.scaling.finetuned"); rope && !*rope)
    WithoutRope(config);
  if (const TensorRecord* up = file.Find("blk.0.ffn_up.weight"); up && config->moe.experts == 0)
    config->intermediate = up->shape[0];
  return {};
}

void GraniteHybridGgufTensors(const DecoderConfig& c, TensorRules* rules) {
  MambaGgufTensors(c, rules);
}

Status NemotronHFromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), config->architecture);
  MoeConfig& moe = config->moe;
  CELER_ASSIGN(const std::vector<int64_t> kv, reader.InOwnLayers("attention.head_count_kv", config->layers));
  CELER_ASSIGN(const std::vector<int64_t> ffn, reader.InOwnLayers("feed_forward_length", config->layers));
  std::vector<MambaLayerKind> kinds;
  for (int64_t i = 0; i < config->layers; ++i) {
    const bool sparse = moe.experts > 0 && moe.sparse_layer[i];
    kinds.push_back(kv[i] > 0    ? MambaLayerKind::kAttention
                    : sparse     ? MambaLayerKind::kExperts
                    : ffn[i] > 0 ? MambaLayerKind::kMlp
                                 : MambaLayerKind::kMamba);
  }
  SetNemotronLayers(kinds, config);
  CELER_RETURN_IF_ERROR(GgufMamba(file, reader, kinds, config));
  config->recurrent.norm_groups = config->recurrent.key_heads;
  PlainMlp(file.Find(FirstOfLayers(config->ffn_layer) + "ffn_up.bias") != nullptr, config);
  config->activation = Activation::kRelu2;
  if (moe.experts == 0) return {};
  moe.score = RouterScore::kSigmoid;
  moe.group_by_best_two = true;
  moe.normalize_eps = 1e-20f;
  CELER_RETURN_IF_ERROR(RouterFromGguf(file, config));
  moe.shared_gated = false;
  const TensorRecord* const shared = file.Find(FirstOfLayers(moe.sparse_layer) + "ffn_up_shexp.weight");
  moe.shared_intermediate = shared ? shared->shape[0] : 0;
  return {};
}

void NemotronHGgufTensors(const DecoderConfig& c, TensorRules* rules) {
  MambaGgufTensors(c, rules);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    if (!c.HasMixer(i)) rules->Rename(layer + "attn_norm.weight", layer + "ffn_norm.weight");
  }
  constexpr int64_t kMostNext = 8;  // layers behind the model's own
  for (int64_t i = 0; i < kMostNext; ++i)
    rules->Skip("blk." + std::to_string(c.layers + i) + ".", "drafts of several tokens, which are not used");
}

}  // namespace celer::families
