#include "models/load/hf_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "models/config/family.h"
#include "models/config/usual_keys.h"
#include "models/config/words.h"
#include "models/load/hf_rope_keys.h"

namespace celer {
namespace {

using Json = nlohmann::ordered_json;

struct ClassName {
  Words families;
  const char* name;
};
constexpr ClassName kClasses[] = {
    {"llama", "LlamaForCausalLM"},
    {"mistral", "MistralForCausalLM"},
    {"mixtral", "MixtralForCausalLM"},
    {"ministral3", "Ministral3ForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"qwen2_moe", "Qwen2MoeForCausalLM"},
    {"qwen3_moe", "Qwen3MoeForCausalLM"},
    {"qwen3_next", "Qwen3NextForCausalLM"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM"},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"},
    {"gpt_oss", "GptOssForCausalLM"},
    {"glm", "GlmForCausalLM"},
    {"glm4", "Glm4ForCausalLM"},
    {"glm4_moe", "Glm4MoeForCausalLM"},
    {"ernie4_5", "Ernie4_5ForCausalLM"},
    {"ernie4_5_moe", "Ernie4_5_MoeForCausalLM"},
    {"minimax_m2", "MiniMaxM2ForCausalLM"},
    {"hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"},
    {"hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM"},
    {"granite", "GraniteForCausalLM"},
    {"granitemoe", "GraniteMoeForCausalLM"},
    {"granitemoeshared", "GraniteMoeSharedForCausalLM"},
    {"granitemoehybrid", "GraniteMoeHybridForCausalLM"},
    {"nemotron_h", "NemotronHForCausalLM"},
    {"bloom", "BloomForCausalLM"},
    {"mpt", "MptForCausalLM"},
    {"minicpm", "MiniCPMForCausalLM"},
    {"minicpm3", "MiniCPM3ForCausalLM"},
    {"phi3", "Phi3ForCausalLM"},
    {"smollm3", "SmolLM3ForCausalLM"},
    {"gemma", "GemmaForCausalLM"},
    {"gemma2", "Gemma2ForCausalLM"},
    {"gemma3", "Gemma3ForCausalLM"},
    {"gemma3n", "Gemma3nForCausalLM"},
    {"gemma4", "Gemma4ForCausalLM"},
    {"llama4", "Llama4ForCausalLM"},
    {"olmo2", "Olmo2ForCausalLM"},
    {"olmo3", "Olmo3ForCausalLM"},
    {"olmoe", "OlmoeForCausalLM"},
    {"exaone4", "Exaone4ForCausalLM"},
    {"deepseek_v2", "DeepseekV2ForCausalLM"},
    {"deepseek_v3", "DeepseekV3ForCausalLM"},
    {"gpt2", "GPT2LMHeadModel"},
    {"gpt_neox", "GPTNeoXForCausalLM"},
    {"phi", "PhiForCausalLM"},
    {"starcoder2", "Starcoder2ForCausalLM"},
    {"stablelm", "StableLmForCausalLM"},
    {"cohere", "CohereForCausalLM"},
    {"cohere2", "Cohere2ForCausalLM"},
    {"falcon", "FalconForCausalLM"},
};

// Several families have one architecture in GGUF.
std::string FamilyOf(const DecoderConfig& c) {
  if (c.family == "llama" && c.moe.experts > 0) return "mixtral";
  if (c.family == "llama" && c.sliding_window > 0) return "mistral";
  if (c.family == "deepseek_v2" && c.moe.score == RouterScore::kSigmoid) return "deepseek_v3";
  if (c.family == "granitemoe" && c.moe.shared_intermediate > 0) return "granitemoeshared";
  if (c.family == "olmo2" && c.sliding_window > 0) return "olmo3";
  return c.family;
}

const char* ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_pytorch_tanh";
    case Activation::kRelu:
      return "relu";
    case Activation::kRelu2:
      return "relu2";
    default:
      return "silu";
  }
}

class Writer {
 public:
  Writer(const DecoderConfig& config, std::string family) : c_(config), family_(std::move(family)) {}

  Result<Json> Run() {
    CELER_RETURN_IF_ERROR(Usual());
    json_ = WithOwnKeys(family_, std::move(json_));
    Biases();
    Windows();
    Scalars();
    if (c_.moe.experts > 0) Experts();
    if (c_.IsLatent()) Latent();
    if (!c_.recurrent.layer.empty()) Recurrent();
    Others();
    if (!c_.layer_shapes.empty()) Shapes();
    return std::move(json_);
  }

 private:
  bool Is(Words families) const { return Holds(families, family_); }
  template <class T>
  void Set(const char* key, T value) {
    json_[key] = std::move(value);
  }
  // The shortest decimal that is the same number: 1e-05 and not 9.99999974e-06.
  static double Decimal(float value) { return std::stod(fmt::format("{}", value)); }

  Status Usual() {
    const auto* const row = std::find_if(std::begin(kClasses), std::end(kClasses),
                                         [&](const ClassName& one) { return Is(one.families); });
    if (row == std::end(kClasses))
      return Error::Unsupported("models of the type '", family_, "' cannot be written as a folder");
    Set("architectures", Json::array({row->name}));
    Set("model_type", FindFamily(family_)->model_type);
    Set("vocab_size", c_.vocab);
    Set("hidden_size", c_.hidden);
    Set("intermediate_size", Is("granitemoe granitemoeshared mixtral minimax_m2 olmoe gpt_oss") ||
                                     (Is("granitemoehybrid") && c_.moe.experts > 0)
                                 ? c_.moe.intermediate
                                 : c_.intermediate);
    Set("num_hidden_layers", c_.layers);
    Set("num_attention_heads", c_.heads);
    if (!Is("gpt2 gpt_neox bloom mpt falcon"))
      Set("num_key_value_heads", c_.IsLatent() ? c_.heads : c_.kv_heads);
    if (!c_.IsLatent() && !Is("gpt2 gpt_neox bloom mpt falcon phi") &&
        (c_.head_dim * c_.heads != c_.hidden || FindFamily(family_)->defaults.head_dim > 0))
      Set("head_dim", c_.head_dim);
    Set("max_position_embeddings", c_.max_positions);
    Set("rms_norm_eps", Decimal(c_.norm_eps));
    const char* const gemma_key = "hidden_activation";
    const bool gelu_new = Is("gpt2 phi") && c_.activation == Activation::kGeluTanh;
    if (!Is("bloom mpt"))
      Set(Is("gemma2 gemma3 gemma3n gemma4") ? gemma_key : "hidden_act",
          gelu_new ? "gelu_new" : ActivationName(c_.activation));
    Set("tie_word_embeddings", c_.tied_embeddings);
    CELER_ASSIGN(const Json rope, HfRopeKeys(c_, family_));
    json_.update(rope);
    return {};
  }

  void Biases() {
    if (Is("llama smollm3 granite granitemoe granitemoeshared granitemoehybrid minicpm minicpm3 qwen3 "
           "qwen3_moe "
           "qwen3_next qwen3_5_text qwen3_5_moe_text gemma gemma2 gemma3 gemma3n gemma4 llama4 olmo2 olmo3 "
           "olmoe cohere "
           "cohere2 hunyuan_v1_dense hunyuan_v1_moe glm glm4 glm4_moe gpt_oss gpt_neox deepseek_v2 "
           "deepseek_v3 "
           "nemotron_h"))
      Set("attention_bias", c_.qkv_bias);
    if (Is("llama smollm3 granite deepseek_v2 minicpm3 nemotron_h")) Set("mlp_bias", c_.mlp_bias);
    if (Is("ernie4_5 ernie4_5_moe starcoder2")) Set("use_bias", c_.qkv_bias);
    if (Is("stablelm")) Set("use_qkv_bias", c_.qkv_bias);
    if (Is("qwen2_moe")) Set("qkv_bias", c_.qkv_bias);
    if (Is("falcon")) Set("bias", c_.qkv_bias);
  }

  Json LayerTypes(const char* windowed) const {
    Json types = Json::array();
    for (int64_t i = 0; i < c_.layers; ++i) types.push_back(c_.Window(i) > 0 ? windowed : "full_attention");
    return types;
  }

  void Windows() {
    if (Is("qwen2 qwen3 qwen2_moe qwen3_moe smollm3")) Set("use_sliding_window", c_.sliding_window > 0);
    if (Is("llama4") && c_.chunked_window) {
      Set("attention_chunk_size", c_.sliding_window);
      Set("layer_types", LayerTypes("chunked_attention"));
      return;
    }
    if (Is("mistral mixtral ministral3 qwen2 qwen3 qwen2_moe qwen3_moe phi3 starcoder2 exaone4 gemma2 gemma3 "
           "gemma3n "
           "gemma4 cohere2 olmo3 gpt_oss smollm3 minimax_m2")) {
      if (c_.sliding_window > 0)
        Set("sliding_window", c_.sliding_window);
      else if (!Is("gemma2 gemma3 gemma3n gemma4 cohere2 olmo3 gpt_oss minimax_m2"))
        Set("sliding_window", nullptr);
    }
    const bool by_layer = Is("gemma2 gemma3 gemma3n gemma4 cohere2 olmo3 gpt_oss exaone4") ||
                          (c_.sliding_window > 0 && Is("qwen2 qwen3"));
    if (by_layer) Set("layer_types", LayerTypes("sliding_attention"));
  }

  void Scalars() {
    if (Is("granite granitemoe granitemoeshared granitemoehybrid")) {
      Set("embedding_multiplier", Decimal(c_.embedding_scale));
      Set("residual_multiplier", Decimal(c_.residual_scale));
      const float plain = 1 / std::sqrt(static_cast<float>(c_.head_dim));
      Set("attention_multiplier", Decimal(c_.attention_scale != 0 ? c_.attention_scale : plain));
      Set("logits_scaling", Decimal(1 / c_.logit_scale));
    }
    if (Is("minicpm minicpm3")) {
      Set("scale_emb", Decimal(c_.embedding_scale));
      Set("scale_depth",
          Decimal(static_cast<float>(c_.residual_scale * std::sqrt(static_cast<double>(c_.layers)))));
      Set("dim_model_base", Decimal(static_cast<float>(c_.logit_scale * static_cast<double>(c_.hidden))));
    }
    if (Is("cohere cohere2")) Set("logit_scale", Decimal(c_.logit_scale));
    if (Is("gemma2 gemma3")) {
      const double scale =
          c_.attention_scale != 0 ? c_.attention_scale : 1 / std::sqrt(static_cast<double>(c_.head_dim));
      Set("query_pre_attn_scalar", static_cast<int64_t>(std::lround(1 / (scale * scale))));
    }
    const auto cap = [&](const char* key, float value) {
      Set(key, value > 0 ? Json(Decimal(value)) : Json(nullptr));
    };
    if (Is("gemma2")) cap("attn_logit_softcapping", c_.attention_softcap);
    if (Is("gemma2 gemma3 gemma3n gemma4")) cap("final_logit_softcapping", c_.logit_softcap);
    if (Is("gpt_oss")) Set("swiglu_limit", Decimal(c_.swiglu_limit));
  }

  int64_t FirstSparse() const {
    const auto& sparse = c_.moe.sparse_layer;
    return std::find(sparse.begin(), sparse.end(), true) - sparse.begin();
  }

  void Experts() {
    const MoeConfig& moe = c_.moe;
    const bool local = Is("mixtral minimax_m2 gpt_oss granitemoe granitemoeshared granitemoehybrid llama4");
    const bool routed = Is("deepseek_v2 deepseek_v3 glm4_moe nemotron_h");
    const bool ernie = Is("ernie4_5_moe");
    Set(local    ? "num_local_experts"
        : routed ? "n_routed_experts"
        : ernie  ? "moe_num_experts"
                 : "num_experts",
        moe.experts);
    Set(ernie                  ? "moe_k"
        : Is("hunyuan_v1_moe") ? "moe_topk"
        : Is("gemma4")         ? "top_k_experts"
                               : "num_experts_per_tok",
        moe.experts_per_token);
    if (!local && !Is("olmoe hunyuan_v1_moe")) Set("moe_intermediate_size", moe.intermediate);
    if (Is("qwen2_moe qwen3_next qwen3_5_moe_text"))
      Set("shared_expert_intermediate_size", moe.shared_intermediate);
    if (Is("granitemoeshared granitemoehybrid")) Set("shared_intermediate_size", moe.shared_intermediate);
    if (Is("nemotron_h")) Set("moe_shared_expert_intermediate_size", moe.shared_intermediate);
    if (Is("qwen2_moe qwen3_moe qwen3_next olmoe deepseek_v3 glm4_moe nemotron_h"))
      Set("norm_topk_prob", moe.normalize_top);
    if (Is("qwen2_moe qwen3_moe qwen3_next")) {
      Json dense = Json::array();
      for (int64_t i = 0; i < c_.layers; ++i)
        if (!c_.IsSparse(i)) dense.push_back(i);
      Set("decoder_sparse_step", 1);
      Set("mlp_only_layers", std::move(dense));
    }
    if (routed || ernie)
      Set(ernie ? "moe_num_shared_experts" : "n_shared_experts",
          Is("nemotron_h") ? 1 : moe.shared_intermediate / std::max<int64_t>(1, moe.intermediate));
    if (routed) {
      Set("routed_scaling_factor", Decimal(moe.routed_scale));
      Set("n_group", moe.groups);
      Set("topk_group", moe.groups_used);
      if (!Is("nemotron_h")) Set("first_k_dense_replace", FirstSparse());
    }
    if (Is("deepseek_v2")) Set("topk_method", moe.groups > 1 ? "group_limited_greedy" : "greedy");
    if (ernie) {
      Set("moe_layer_interval", 1);
      Set("moe_layer_start_index", FirstSparse());
      Set("moe_layer_end_index", c_.layers - 1);
      Set("moe_norm_min", Decimal(moe.normalize_eps));
    }
    if (Is("gemma4")) Set("enable_moe_block", true);
    if (!Is("llama4")) return;
    Json layers = Json::array();
    for (int64_t i = 0; i < c_.layers; ++i)
      if (c_.IsSparse(i)) layers.push_back(i);
    Set("moe_layers", std::move(layers));
    Set("intermediate_size", moe.intermediate);
    Set("intermediate_size_mlp", c_.intermediate);
  }

  void Latent() {
    const LatentConfig& l = c_.latent;
    Set("q_lora_rank", l.q_rank > 0 ? Json(l.q_rank) : Json(nullptr));
    Set("kv_lora_rank", l.kv_rank);
    Set("qk_nope_head_dim", l.nope_dim);
    Set("qk_rope_head_dim", l.rope_dim);
    Set("v_head_dim", l.value_dim);
    if (Is("deepseek_v3")) Set("rope_interleave", c_.rope.layout == RopeLayout::kInterleaved);
  }

  Json MixerTypes() const {
    Json types = Json::array();
    for (int64_t i = 0; i < c_.layers; ++i)
      types.push_back(c_.IsRecurrent(i)    ? "linear_attention"
                      : c_.HasAttention(i) ? "full_attention"
                      : c_.IsSparse(i)     ? "moe"
                                           : "mlp");
    return types;
  }

  void Recurrent() {
    const RecurrentConfig& r = c_.recurrent;
    Set(Is("nemotron_h") ? "layers_block_type" : "layer_types", MixerTypes());
    if (r.kind == RecurrentKind::kGatedDelta) {
      Set("linear_conv_kernel_dim", r.conv_kernel);
      Set("linear_num_key_heads", r.key_heads);
      Set("linear_key_head_dim", r.key_dim);
      Set("linear_num_value_heads", r.value_heads);
      Set("linear_value_head_dim", r.value_dim);
    } else if (Is("nemotron_h")) {
      json_.erase("num_hidden_layers");
      Set("mamba_num_heads", r.value_heads);
      Set("mamba_head_dim", r.value_dim);
      Set("n_groups", r.key_heads);
      Set("ssm_state_size", r.key_dim);
      Set("conv_kernel", r.conv_kernel);
      Set("use_conv_bias", r.conv_bias);
      Set("use_bias", r.bias);
      Set("time_step_min", 0.0);
    } else {
      Set("mamba_n_heads", r.value_heads);
      Set("mamba_n_groups", r.key_heads);
      Set("mamba_d_state", r.key_dim);
      Set("mamba_d_conv", r.conv_kernel);
      Set("mamba_d_head", r.value_dim);
      Set("mamba_expand", r.value_heads * r.value_dim / c_.hidden);
      Set("mamba_conv_bias", r.conv_bias);
      Set("mamba_proj_bias", r.bias);
    }
  }

  void Others() {
    if (Is("granitemoehybrid")) {
      Set("position_embedding_type", c_.Rotates(0) ? "rope" : "nope");
      if (c_.moe.experts == 0) {
        Set("num_local_experts", 0);
        Set("shared_intermediate_size", c_.intermediate);
      }
    }
    if (Is("smollm3 llama4")) {
      Json rotates = Json::array();
      for (int64_t i = 0; i < c_.layers; ++i) rotates.push_back(c_.Rotates(i) ? 1 : 0);
      Set("no_rope_layers", std::move(rotates));
    }
    if (Is("llama4")) {
      Set("use_qk_norm", c_.qk_norm);
      Set("attn_temperature_tuning", c_.query_scale.beta != 0);
      Set("attn_scale", c_.query_scale.beta);
      Set("floor_scale", static_cast<int64_t>(c_.query_scale.positions));
    }
    if (Is("glm4_moe cohere")) Set("use_qk_norm", c_.qk_norm);
    if (Is("stablelm phi")) Set("qk_layernorm", c_.qk_norm);
    if (Is("stablelm gpt_neox")) Set("use_parallel_residual", c_.parallel_block);
    if (Is("gpt2")) Set("n_inner", c_.intermediate), json_.erase("intermediate_size");
    if (Is("bloom mpt")) json_.erase("intermediate_size");
    if (Is("mpt")) {
      json_["attn_config"] = {{"alibi", true}, {"alibi_bias_max", 8}};
      if (c_.qkv_clip > 0) json_["attn_config"]["clip_qkv"] = Decimal(c_.qkv_clip);
    }
    if (Is("nemotron_h") && c_.intermediate < 1)
      json_.erase("intermediate_size");  // no layer has such a block
    if (Is("falcon")) Falcon();
    if (!Is("gemma3n")) return;
    Set("laurel_rank", c_.laurel_rank);
    Set("altup_num_inputs", c_.altup.streams);
    Set("altup_active_idx", c_.altup.active);
    Set("altup_correct_scale", c_.altup.scale_output);
    Json shares = Json::array();
    for (const float share : c_.gate_sparsity) shares.push_back(std::round(share * 1e5) / 1e5);
    Set("activation_sparsity_pattern", std::move(shares));
  }

  void Falcon() {
    json_["ffn_hidden_size"] = c_.intermediate;
    json_.erase("intermediate_size");
    Set("new_decoder_architecture", c_.parallel_norms);
    Set("multi_query", c_.kv_heads == 1);
    Set("num_kv_heads", c_.kv_heads);
    Set("parallel_attn", c_.parallel_block);
    Set("num_ln_in_parallel_attn", c_.parallel_norms ? 2 : 1);
    Set("alibi", c_.alibi_max > 0);
    // Grouped keys and values with one norm are of the newer architecture, too.
    if (c_.kv_heads != 1 && c_.kv_heads != c_.heads) Set("new_decoder_architecture", true);
  }

  void Shapes() {
    if (c_.per_layer_dim > 0) Set("vocab_size_per_layer_input", c_.per_layer_vocab);
    Set("hidden_size_per_layer_input", c_.per_layer_dim);
    int64_t shared = 0;
    for (int64_t i = 0; i < c_.layers; ++i) shared += c_.KvFrom(i) != i;
    Set("num_kv_shared_layers", shared);
    if (Is("gemma3n")) {
      Json widths = Json::array();
      for (int64_t i = 0; i < c_.layers; ++i) widths.push_back(c_.Intermediate(i));
      Set("intermediate_size", std::move(widths));
      return;
    }
    int64_t narrow = c_.intermediate;
    bool keys = false, more_kv = false;
    Json by_layer = Json::object();
    for (int64_t i = 0; i < c_.layers; ++i) {
      narrow = std::min(narrow, c_.Intermediate(i));
      keys |= c_.KvFrom(i) == i && c_.ValuesAreKeys(i);
      if (c_.HeadDim(i) != c_.head_dim || c_.KvHeads(i) != c_.kv_heads) {
        more_kv = true;
        by_layer[std::to_string(i)] = {{"head_dim", c_.HeadDim(i)}, {"num_key_value_heads", c_.KvHeads(i)}};
      }
    }
    Set("use_double_wide_mlp", narrow != c_.intermediate);
    Set("intermediate_size", narrow);
    Set("attention_k_eq_v", keys);
    Set("global_head_dim", HeadDimOfFullLayers(c_));
    if (more_kv) Set("per_layer_config", std::move(by_layer));
  }

  const DecoderConfig& c_;
  std::string family_;
  Json json_;
};

}  // namespace

Result<Json> HfKeys(const DecoderConfig& config) {
  return Writer(config, FamilyOf(config)).Run();
}

}  // namespace celer
