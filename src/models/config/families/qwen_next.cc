// Qwen3-Next, Qwen3.5 and Qwen3.6: three of four layers are gated delta nets, the others have attention with a gate on
// its output.
#include <algorithm>

#include "io/file/printable.h"
#include "models/config/families/families.h"
#include "models/load/gguf_reader.h"

namespace celer::families {
namespace {

constexpr int64_t kMost = int64_t{1} << 20;
constexpr const char* kGgufPath = "the GGUF file";
constexpr int64_t kInterval = 4;  // one layer of so many has attention

std::vector<bool> EveryLayerBut(int64_t layers, int64_t interval) {
  std::vector<bool> recurrent;
  for (int64_t i = 0; i < layers; ++i) recurrent.push_back((i + 1) % interval != 0);
  return recurrent;
}

Result<std::vector<bool>> RecurrentByType(const JsonFields& json, int64_t layers) {
  if (!json.Has("layer_types")) {
    CELER_ASSIGN(const int64_t interval, HfInt(json, "full_attention_interval", 1, kMost, kInterval));
    return EveryLayerBut(layers, interval);
  }
  const nlohmann::json& types = *json.Find("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers)
    return Error::Corrupt(json.where(), ": 'layer_types' is not a list of ", layers,
                          " names, one for each layer");
  std::vector<bool> recurrent;
  for (const nlohmann::json& type : types) {
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    recurrent.push_back(name == "linear_attention");
    if (!recurrent.back() && name != "full_attention")
      return Error::Unsupported(json.where(), ": 'layer_types' names ", Printable(JsonText(type), 60),
                                "; supported are \"full_attention\" and \"linear_attention\"");
  }
  return recurrent;
}

void GatedAttention(DecoderConfig* config) {
  config->qk_norm = true;
  config->output_gate = true;
}

Status ReadRecurrent(const JsonFields& json, DecoderConfig* config) {
  RecurrentConfig& r = config->recurrent;
  CELER_ASSIGN(r.layer, RecurrentByType(json, config->layers));
  CELER_ASSIGN(r.conv_kernel, HfInt(json, "linear_conv_kernel_dim", 1, kMost, 4));
  CELER_ASSIGN(r.key_heads, HfInt(json, "linear_num_key_heads", 1, kMost, 16));
  CELER_ASSIGN(r.key_dim, HfInt(json, "linear_key_head_dim", 1, kMost, 128));
  CELER_ASSIGN(r.value_heads, HfInt(json, "linear_num_value_heads", 1, kMost, 32));
  CELER_ASSIGN(r.value_dim, HfInt(json, "linear_value_head_dim", 1, kMost, 128));
  if (std::find(r.layer.begin(), r.layer.end(), true) == r.layer.end()) r.layer.clear();
  CELER_ASSIGN(const bool gate, json.GetBool("attn_output_gate", true));
  if (!gate)
    return Error::Unsupported(
        json.where(), ": 'attn_output_gate' is false, which is not implemented for models of the type '",
        config->architecture, "'");
  // Their convolution has the activation of the feed-forward layers.
  if (!r.layer.empty() && config->activation != Activation::kSilu)
    return Error::Unsupported(json.where(), ": 'hidden_act' is not silu, which recurrent layers need here");
  GatedAttention(config);
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  return {};
}

Status ReadExperts(const JsonFields& json, int64_t experts, int64_t per_token, DecoderConfig* config) {
  MoeConfig& moe = config->moe;
  // Newer versions of transformers write Mixtral's name.
  const char* key = json.Has("num_local_experts") ? "num_local_experts" : "num_experts";
  CELER_ASSIGN(moe.experts, HfInt(json, key, 0, 65536, experts));
  if (moe.experts == 0) return {};
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, moe.experts, per_token));
  CELER_ASSIGN(moe.intermediate, HfInt(json, "moe_intermediate_size", 1, kMost, 512));
  CELER_ASSIGN(moe.shared_intermediate, HfInt(json, "shared_expert_intermediate_size", 1, kMost, 512));
  moe.normalize_top = true;
  moe.sparse_layer.assign(config->layers, true);
  return {};
}

// Behind the keys that all architectures have.
Status GgufRecurrent(const GgufFile& file, const char* architecture, DecoderConfig* config) {
  const GgufReader reader(file, kGgufPath, architecture);
  RecurrentConfig& r = config->recurrent;
  CELER_ASSIGN(const int64_t interval, reader.Int("full_attention_interval", kInterval));
  CELER_ASSIGN(r.conv_kernel, reader.Int("ssm.conv_kernel"));
  CELER_ASSIGN(r.key_dim, reader.Int("ssm.state_size"));
  CELER_ASSIGN(r.key_heads, reader.Int("ssm.group_count"));
  CELER_ASSIGN(r.value_heads, reader.Int("ssm.time_step_rank"));
  CELER_ASSIGN(const int64_t inner, reader.Int("ssm.inner_size"));
  if (interval < 1 || r.value_heads < 1 || inner % r.value_heads != 0)
    return Error::Corrupt(reader.path(), ": attention in every ", interval, "th layer, and ", r.value_heads,
                          " heads of recurrent layers for ", inner, " values");
  r.value_dim = inner / r.value_heads;
  r.layer = EveryLayerBut(config->layers, interval);
  if (interval == 1) r.layer.clear();
  GatedAttention(config);
  config->moe.normalize_top = true;
  return {};
}

}  // namespace

Status Qwen3NextFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(ReadRecurrent(json, config));
  CELER_RETURN_IF_ERROR(ReadExperts(json, 512, 10, config));
  if (config->moe.experts == 0) return {};
  CELER_ASSIGN(config->moe.normalize_top, json.GetBool("norm_topk_prob", true));
  return QwenSparseLayers(json, config);
}

Status Qwen35FromHf(const JsonFields& json, DecoderConfig* config) {
  return ReadRecurrent(json, config);
}

Status Qwen35MoeFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(ReadRecurrent(json, config));
  return ReadExperts(json, 256, 8, config);
}

namespace {

// Of all these families.
void CommonHfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  for (const char* norm : {to.attention_norm, to.ffn_norm, to.norm, to.q_norm, to.k_norm})
    rules->AddOne(norm);
  rules->Skip("mtp.", "drafts of several tokens, which are not used");
  rules->SplitChannels(to.state_conv, to.state_conv, c.recurrent.conv_kernel);
  const std::string experts = "model.layers.%.mlp.experts.";
  rules->SplitIfThere(experts + "gate_up_proj", {{experts + "#.gate_proj.weight", c.moe.intermediate},
                                                 {experts + "#.up_proj.weight", c.moe.intermediate}});
  rules->SplitIfThere(experts + "down_proj", {{experts + "#.down_proj.weight", c.hidden}});
}

void CommonGgufTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  const RecurrentConfig& r = c.recurrent;
  const int64_t keys = r.key_heads * r.key_dim;
  rules->Rename("blk.%.post_attention_norm.weight", to.ffn_norm);
  rules->Split("blk.%.attn_qkv.weight",
               {{to.state_q, keys}, {to.state_k, keys}, {to.state_v, r.value_heads * r.value_dim}});
  rules->SplitElements(to.state_conv, {{to.state_conv, r.conv_kernel}});
  rules->SplitIfThere("blk.%.ffn_gate_up_exps.weight", {{"blk.%.ffn_gate_exps.weight", c.moe.intermediate},
                                                        {"blk.%.ffn_up_exps.weight", c.moe.intermediate}});
}

}  // namespace

void Qwen3NextHfTensors(const DecoderConfig& c, TensorRules* rules) {
  CommonHfTensors(c, rules);
  const PartNames& to = rules->parts();
  const RecurrentConfig& r = c.recurrent;
  if (r.layer.empty()) return;
  const int64_t per_key = r.value_heads / r.key_heads, values = per_key * r.value_dim;
  rules->Split("model.layers.%.linear_attn.in_proj_qkvz.weight",
               {{to.state_q, r.key_dim}, {to.state_k, r.key_dim}, {to.state_v, values}, {to.state_z, values}},
               r.key_heads);
  rules->Split("model.layers.%.linear_attn.in_proj_ba.weight", {{to.state_b, per_key}, {to.state_a, per_key}},
               r.key_heads);
}

void Qwen35HfTensors(const DecoderConfig& c, TensorRules* rules) {
  CommonHfTensors(c, rules);
  const PartNames& to = rules->parts();
  const RecurrentConfig& r = c.recurrent;
  const int64_t keys = r.key_heads * r.key_dim;
  rules->Split("model.layers.%.linear_attn.in_proj_qkv.weight",
               {{to.state_q, keys}, {to.state_k, keys}, {to.state_v, r.value_heads * r.value_dim}});
}

void Qwen3NextGgufTensors(const DecoderConfig& c, TensorRules* rules) {
  CommonGgufTensors(c, rules);
  const RecurrentConfig& r = c.recurrent;
  if (r.layer.empty()) return;
  const int64_t per_key = r.value_heads / r.key_heads;
  rules->Split("blk.%.ssm_ba.weight", {{rules->parts().state_b, per_key}, {rules->parts().state_a, per_key}},
               r.key_heads);
}

void Qwen35GgufTensors(const DecoderConfig& c, TensorRules* rules) {
  CommonGgufTensors(c, rules);
  // Layers behind the model's own, which its block_count counts.
  constexpr int64_t kMostNext = 8;
  for (int64_t i = 0; i < kMostNext; ++i)
    rules->Skip("blk." + std::to_string(c.layers + i) + ".", "drafts of several tokens, which are not used");
}

Status Qwen3NextFromGguf(const GgufFile& file, DecoderConfig* config) {
  return GgufRecurrent(file, "qwen3next", config);
}

// Their converter reorders the value heads.
Status Qwen35FromGguf(const GgufFile& file, DecoderConfig* config) {
  config->recurrent.tiled_values = true;
  return GgufRecurrent(file, config->architecture.c_str(), config);
}

}  // namespace celer::families
