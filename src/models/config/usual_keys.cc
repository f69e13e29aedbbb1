#include "models/config/usual_keys.h"

#include "models/config/words.h"

namespace celer {
namespace {

struct Rename {
  const char* theirs;
  const char* usual;
  Words families;
};

// If a file has both, its own name counts.
constexpr Rename kRenames[] = {
    {"n_embd", "hidden_size", "gpt2 gptj"},
    {"n_embed", "hidden_size", "falcon bloom"},
    {"d_model", "hidden_size", "mpt"},
    {"n_layer", "num_hidden_layers", "gpt2 gptj bloom"},
    {"n_layers", "num_hidden_layers", "mpt"},
    {"n_head", "num_attention_heads", "gpt2 gptj bloom"},
    {"n_heads", "num_attention_heads", "mpt"},
    {"n_positions", "max_position_embeddings", "gpt2 gptj"},
    {"max_seq_len", "max_position_embeddings", "mpt"},
    {"seq_length", "max_position_embeddings", "bloom"},
    {"ffn_dim", "intermediate_size", "opt"},
    {"activation_function", "hidden_act", "gpt2 gptj opt"},
    {"activation", "hidden_act", "falcon"},
    {"layer_norm_eps", "rms_norm_eps", "gpt_neox phi stablelm cohere cohere2"},
    {"layer_norm_epsilon", "rms_norm_eps", "gpt2 gptj falcon bloom mpt"},
    {"norm_epsilon", "rms_norm_eps", "starcoder2"},
    {"layer_norm_epsilon", "rms_norm_eps", "nemotron_h"},
    {"mlp_hidden_act", "hidden_act", "nemotron_h"},
    {"mamba_n_groups", "n_groups", "nemotron_h"},
    {"mamba_d_conv", "conv_kernel", "nemotron_h"},
    {"mamba_conv_bias", "use_conv_bias", "nemotron_h"},
    {"mamba_dt_min", "time_step_min", "nemotron_h"},
    {"rotary_pct", "partial_rotary_factor", "gpt_neox"},
    {"rotary_emb_base", "rope_theta", "gpt_neox"},
};

struct ClassDefault {
  const char* key;
  const char* value;  // JSON
  Words families;
};

constexpr ClassDefault kDefaults[] = {
    {"hidden_act", "\"gelu_new\"", "gpt2 gptj phi"},
    {"hidden_act", "\"gelu\"", "gpt_neox falcon mpt"},
    {"hidden_act", "\"gelu_pytorch_tanh\"", "starcoder2 bloom"},
    {"hidden_act", "\"relu\"", "opt"},
    {"partial_rotary_factor", "0.5", "phi glm glm4 glm4_moe bamba"},
    {"hidden_act", "\"relu2\"", "nemotron_h"},
    {"partial_rotary_factor", "0.25", "gpt_neox stablelm qwen3_next qwen3_5_text qwen3_5_moe_text"},
    {"tie_word_embeddings", "true", "gemma gemma2 gemma3 smollm3 minicpm ernie4_5 ernie4_5_moe"},
    {"hidden_act", "\"gelu_pytorch_tanh\"", "gemma"},
    {"tie_word_embeddings", "true", "gemma3n gemma4"},
    {"rope_parameters",
     "{\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}, \"full_attention\": "
     "{\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25, \"rope_theta\": 1000000.0}}",
     "gemma4"},
    {"original_max_position_embeddings", "4096", "phi3"},
    {"rope_parameters",
     "{\"rope_type\": \"yarn\", \"rope_theta\": 1000000.0, \"factor\": 16.0, \"beta_fast\": 32.0, "
     "\"original_max_position_embeddings\": 16384, \"beta_slow\": 1.0, \"mscale_all_dim\": 1.0, "
     "\"mscale\": 1.0, \"llama_4_scaling_beta\": 0.1}",
     "ministral3"},
    {"tie_word_embeddings", "true", "opt gpt2 starcoder2 cohere cohere2 falcon bloom mpt"},
};

}  // namespace

nlohmann::ordered_json WithOwnKeys(std::string_view family, nlohmann::ordered_json json) {
  for (const Rename& row : kRenames) {
    if (!Holds(row.families, family) || !json.contains(row.usual)) continue;
    json[row.theirs] = json[row.usual];
    json.erase(row.usual);
  }
  return json;
}

nlohmann::json WithUsualKeys(std::string_view family, const nlohmann::json& json) {
  nlohmann::json usual = json;
  for (const Rename& row : kRenames) {
    if (!Holds(row.families, family) || !usual.contains(row.theirs)) continue;
    usual[row.usual] = usual[row.theirs];
    usual.erase(row.theirs);
  }
  for (const ClassDefault& row : kDefaults)
    if (Holds(row.families, family) && !usual.contains(row.key))
      usual[row.key] = nlohmann::json::parse(row.value);
  return usual;
}

}  // namespace celer
