#include "models/config/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "io/file/printable.h"
#include "models/config/words.h"
#include "weights/published/family.h"
#include "weights/published/published_source.h"

namespace celer {
namespace {

// ---- Keys of config.json ----

// Read for every family.
constexpr Words kUsed =
    "model_type vocab_size hidden_size intermediate_size hidden_act num_hidden_layers "
    "head_dim num_attention_heads rms_norm_eps num_key_value_heads rope_theta "
    "max_position_embeddings rope_scaling original_max_position_embeddings rope_parameters "
    "partial_rotary_factor layer_types tie_word_embeddings ";

// Read for some families, with the values that mean nothing to the others. Other values give a warning there:
// transformers ignores them, and biases that a file holds and no family reads are rejected as unused tensors.
struct FamilyKey {
  std::string_view key;
  Words families;
  Words neutral;         // as JSON; null is always neutral
  bool refused = false;  // not ignored by the others: transformers' cache, for one, cuts itself to any window
};

constexpr FamilyKey kFamilyKeys[] = {
    {"attention_bias",
     "llama qwen3 qwen3_moe gpt_neox cohere cohere2 gpt_oss glm4_moe hunyuan_v1_moe gemma2 gemma3 olmo2 "
     "olmo3 olmoe hunyuan_v1_dense glm4 qwen3_next qwen3_5_text qwen3_5_moe_text",
     "false"},
    {"mlp_bias", "llama deepseek_v2 minicpm3", "false"},
    {"qkv_bias", "qwen2_moe", ""},
    {"sliding_window",
     "mistral mixtral qwen2 qwen3 qwen2_moe qwen3_moe starcoder2 cohere2 gpt_oss gemma2 gemma3 olmo3 exaone4",
     "", true},
    {"use_sliding_window", "qwen2 qwen3 qwen2_moe qwen3_moe", "false"},
    {"max_window_layers", "qwen2 qwen3 qwen2_moe", ""},
    {"use_bidirectional_attention", "gemma4", "false", true},
    {"global_head_dim", "gemma4", "", true},
    {"num_global_key_value_heads", "gemma4", "", true},
    {"per_layer_config", "gemma4", "", true},
    {"attention_k_eq_v", "gemma4", "false", true},
    {"num_kv_shared_layers", "gemma3n gemma4", "0", true},
    {"use_double_wide_mlp", "gemma4", "false", true},
    {"enable_moe_block", "gemma4", "false", true},
    {"top_k_experts", "gemma4", "", true},
    {"hidden_size_per_layer_input", "gemma3n gemma4", "0", true},
    {"vocab_size_per_layer_input", "gemma3n gemma4", "", true},
    {"activation_sparsity_pattern", "gemma3n", "", true},
    {"altup_num_inputs", "gemma3n", "", true},
    {"altup_active_idx", "gemma3n", "", true},
    {"altup_correct_scale", "gemma3n", "", true},
    {"laurel_rank", "gemma3n", "", true},
    {"attention_bias", "gemma3n gemma4 llama4", "false"},
    {"sliding_window", "gemma3n gemma4", "", true},
    {"hidden_activation", "gemma3n gemma4", "", true},
    {"final_logit_softcapping", "gemma3n gemma4", "0", true},
    {"rope_local_base_freq", "gemma3n", "", true},
    {"num_experts", "gemma4", "0 1"},
    {"moe_intermediate_size", "gemma4", "0"},
    {"num_experts_per_tok", "llama4", "0"},
    {"num_local_experts", "llama4", "0"},
    {"intermediate_size_mlp", "llama4", "", true},
    {"moe_layers", "llama4", "", true},
    {"interleave_moe_layer_step", "llama4", "", true},
    {"use_qk_norm", "llama4", "false", true},
    {"no_rope_layers", "llama4", "", true},
    {"no_rope_layer_interval", "llama4", "0", true},
    {"attention_chunk_size", "llama4", "", true},
    {"attn_temperature_tuning", "llama4", "false 0", true},
    {"floor_scale", "llama4", "", true},
    {"attn_scale", "llama4", "", true},
    {"num_local_experts",
     "mixtral qwen3_moe gpt_oss glm4_moe minimax_m2 hunyuan_v1_moe olmoe qwen3_next qwen3_5_moe_text", "0"},
    {"num_experts",
     "mixtral qwen2_moe qwen3_moe gpt_oss ernie4_5_moe minimax_m2 hunyuan_v1_moe olmoe qwen3_next "
     "qwen3_5_moe_text",
     "0 1"},
    {"num_experts_per_tok",
     "mixtral qwen2_moe qwen3_moe gpt_oss glm4_moe ernie4_5_moe minimax_m2 hunyuan_v1_moe olmoe deepseek_v2 "
     "deepseek_v3 kimi_k2 glm4_moe_lite qwen3_next qwen3_5_moe_text",
     "0"},
    {"moe_intermediate_size",
     "qwen2_moe qwen3_moe glm4_moe ernie4_5_moe deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite qwen3_next "
     "qwen3_5_moe_text",
     "0"},
    {"shared_expert_intermediate_size", "qwen2_moe qwen3_next qwen3_5_moe_text", "0"},
    {"decoder_sparse_step", "qwen2_moe qwen3_moe qwen3_next", "1"},
    {"mlp_only_layers", "qwen2_moe qwen3_moe qwen3_next", "[]"},
    {"norm_topk_prob",
     "qwen2_moe qwen3_moe glm4_moe olmoe deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite qwen3_next", ""},
    {"linear_conv_kernel_dim", "qwen3_next qwen3_5_text qwen3_5_moe_text", ""},
    {"linear_key_head_dim", "qwen3_next qwen3_5_text qwen3_5_moe_text", ""},
    {"linear_value_head_dim", "qwen3_next qwen3_5_text qwen3_5_moe_text", ""},
    {"linear_num_key_heads", "qwen3_next qwen3_5_text qwen3_5_moe_text", ""},
    {"linear_num_value_heads", "qwen3_next qwen3_5_text qwen3_5_moe_text", ""},
    {"full_attention_interval", "qwen3_next qwen3_5_text qwen3_5_moe_text", ""},
    {"attn_output_gate", "qwen3_next qwen3_5_text qwen3_5_moe_text", ""},
    {"mtp_num_hidden_layers", "qwen3_next qwen3_5_text qwen3_5_moe_text", ""},
    {"mtp_use_dedicated_embeddings", "qwen3_next qwen3_5_text qwen3_5_moe_text", ""},
    {"mamba_ssm_dtype", "qwen3_next qwen3_5_text qwen3_5_moe_text", ""},
    {"enable_bias", "opt", "true"},
    {"word_embed_proj_dim", "opt", ""},
    {"n_inner", "gpt2 gptj", ""},
    {"scale_attn_weights", "gpt2", "true"},
    {"use_parallel_residual", "gpt_neox stablelm", "false"},
    {"rotary_dim", "gptj minimax_m2", "", true},
    {"use_bias", "starcoder2 ernie4_5_moe", "false", true},
    {"use_qkv_bias", "stablelm", "false", true},
    {"qk_layernorm", "phi stablelm", "false", true},
    {"use_qk_norm", "cohere glm4_moe minimax_m2 hunyuan_v1_moe hunyuan_v1_dense", "false", true},
    {"logit_scale", "cohere cohere2", "1", true},
    {"sliding_window_pattern", "cohere2 gemma3 exaone4", "0", true},
    {"lm_head_bias", "phimoe", "false", true},
    {"input_jitter_noise", "phimoe", ""},  // of the training
    {"attention_bias", "phimoe", "false"},
    {"sliding_window", "phimoe", "", true},
    {"num_local_experts", "phimoe", "0"},
    {"num_experts_per_tok", "phimoe", "0"},
    {"alibi", "falcon", "false", true},
    {"do_layer_norm_before", "opt", "true", true},
    {"_remove_final_layer_norm", "opt", "false", true},
    {"attn_config", "mpt", "", true},
    {"expansion_ratio", "", "4", true},
    {"no_bias", "", "true", true},
    {"learned_pos_emb", "mpt", ""},  // ALiBi says where a token is
    {"embedding_fraction", "mpt", ""},
    {"emb_pdrop", "mpt", ""},
    {"init_device", "mpt", ""},
    {"init_config", "mpt", ""},
    {"norm_type", "", "\"low_precision_layernorm\" \"layernorm\"", true},
    {"verbose", "mpt", ""},
    {"tokenizer_name", "mpt", ""},
    {"apply_residual_connection_post_layernorm", "", "false", true},
    {"slow_but_exact", "bloom", ""},
    {"offset_alibi", "bloom", ""},  // how it was trained, as those below
    {"skip_bias_add", "bloom", ""},
    {"skip_bias_add_qkv", "bloom", ""},
    {"masked_softmax_fusion", "bloom", ""},
    {"attention_softmax_in_fp32", "bloom", ""},
    {"bias_dropout_fusion", "bloom", ""},
    // Of Mamba-2 layers.
    {"mamba_n_heads", "granitemoehybrid bamba", "", true},
    {"mamba_n_groups", "granitemoehybrid bamba", "", true},
    {"mamba_d_state", "granitemoehybrid bamba", "", true},
    {"mamba_d_head", "granitemoehybrid bamba", "", true},
    {"mamba_d_conv", "granitemoehybrid bamba", "", true},
    {"mamba_expand", "granitemoehybrid bamba", "", true},
    {"mamba_conv_bias", "granitemoehybrid bamba", "", true},
    {"mamba_proj_bias", "granitemoehybrid bamba", "false", true},
    {"mamba_chunk_size", "granitemoehybrid bamba nemotron_h", ""},  // how a library cuts prompts
    {"chunk_size", "nemotron_h", ""},
    {"time_step_limit", "granitemoehybrid bamba nemotron_h", ""},  // nemotron_h: not used by its class
    {"time_step_min", "nemotron_h", ""},
    {"time_step_max", "nemotron_h", ""},  // of new weights
    {"time_step_floor", "nemotron_h", ""},
    {"mamba_dt_max", "nemotron_h", ""},
    {"mamba_dt_init_floor", "nemotron_h", ""},
    {"mamba_dt_limit", "nemotron_h", ""},
    {"mamba_num_heads", "nemotron_h", "", true},
    {"mamba_head_dim", "nemotron_h", "", true},
    {"mamba_hidden_act", "nemotron_h", "\"silu\"", true},
    {"mamba_ssm_cache_dtype", "nemotron_h", ""},
    {"n_groups", "nemotron_h", "", true},
    {"ssm_state_size", "nemotron_h", "", true},
    {"conv_kernel", "nemotron_h", "", true},
    {"expand", "nemotron_h", ""},  // the heads say it
    {"use_conv_bias", "nemotron_h", "", true},
    {"use_mamba_kernels", "nemotron_h", ""},
    {"layers_block_type", "granitemoehybrid nemotron_h", "", true},
    {"hybrid_override_pattern", "nemotron_h", "", true},
    {"attn_layer_indices", "bamba", "", true},
    {"moe_shared_expert_intermediate_size", "nemotron_h", "0", true},
    {"moe_shared_expert_overlap", "nemotron_h", ""},
    {"moe_latent_size", "", "", true},
    {"mtp_layers_block_type", "nemotron_h", ""},
    {"mtp_hybrid_override_pattern", "nemotron_h", ""},
    {"residual_in_fp32", "nemotron_h", "false"},
    {"rescale_prenorm_residual", "nemotron_h", ""},
    {"num_logits_to_keep", "bamba nemotron_h", ""},
    {"z_loss_coefficient", "bamba", "0"},
    {"normalization_function", "", "\"rmsnorm\"", true},
    {"init_method", "granitemoehybrid", ""},
    {"attn_rotary_emb", "bamba", ""},  // half of a head, as in its class
    {"mamba_use_mlp", "", "true", true},
    {"position_embedding_type", "granitemoehybrid", "\"rope\" \"rotary\"", true},
    // Again, for more families.
    {"attention_bias", "granitemoehybrid bamba", "false"},
    {"mlp_bias", "bamba nemotron_h", "false"},
    {"use_bias", "nemotron_h", "false", true},
    {"num_local_experts", "granitemoehybrid nemotron_h", "0"},
    {"num_experts_per_tok", "granitemoehybrid nemotron_h", "0"},
    {"shared_intermediate_size", "granitemoehybrid", "0"},
    {"moe_intermediate_size", "nemotron_h", "0"},
    {"norm_topk_prob", "nemotron_h", ""},
    {"attention_multiplier", "granitemoehybrid", "", true},
    {"embedding_multiplier", "granitemoehybrid", "1", true},
    {"residual_multiplier", "granitemoehybrid", "1", true},
    {"logits_scaling", "granitemoehybrid", "1", true},
    {"n_routed_experts", "nemotron_h", "0", true},
    {"n_shared_experts", "nemotron_h", "0", true},
    {"routed_scaling_factor", "nemotron_h", "1", true},
    {"n_group", "nemotron_h", "0 1", true},
    {"topk_group", "nemotron_h", "0 1", true},
    {"num_nextn_predict_layers", "nemotron_h", "0", true},
    {"attention_bias",
     "granite granitemoe granitemoeshared minicpm gemma smollm3 glm deepseek_v2 deepseek_v3 kimi_k2 "
     "glm4_moe_lite minicpm3",
     "false"},
    {"mlp_bias", "granite smollm3", "false"},
    {"sliding_window", "ministral3 phi3 smollm3", "", true},
    {"use_sliding_window", "smollm3", "false"},
    {"num_local_experts", "granitemoe granitemoeshared", "0"},
    {"num_experts_per_tok", "granitemoe granitemoeshared", "0"},
    {"shared_intermediate_size", "granitemoeshared", "0"},
    {"use_bias", "ernie4_5", "false", true},
    {"attention_multiplier", "granite granitemoe granitemoeshared", "", true},
    {"embedding_multiplier", "granite granitemoe granitemoeshared", "1", true},
    {"residual_multiplier", "granite granitemoe granitemoeshared", "1", true},
    {"logits_scaling", "granite granitemoe granitemoeshared", "1", true},
    {"scale_emb", "minicpm minicpm3", "1", true},
    {"scale_depth", "minicpm minicpm3", "", true},
    {"dim_model_base", "minicpm minicpm3", "", true},
    {"no_rope_layers", "smollm3", "", true},
    {"no_rope_layer_interval", "smollm3", "0", true},
    {"hidden_activation", "gemma gemma2 gemma3", "", true},
    {"query_pre_attn_scalar", "gemma2 gemma3", "", true},
    {"attn_logit_softcapping", "gemma2", "0", true},
    {"final_logit_softcapping", "gemma2 gemma3", "0", true},
    {"rope_local_base_freq", "gemma3", "", true},
    {"bias", "falcon", "false", true},
    {"num_kv_heads", "falcon", ""},
    {"new_decoder_architecture", "falcon", "false"},
    {"multi_query", "falcon", "false"},
    {"parallel_attn", "falcon", "false"},
    {"num_ln_in_parallel_attn", "falcon", ""},
    {"ffn_hidden_size", "falcon", ""},
    {"swiglu_limit", "gpt_oss", "", true},
    {"n_routed_experts", "glm4_moe deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite", "0", true},
    {"n_shared_experts", "glm4_moe deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite", "0", true},
    {"routed_scaling_factor", "glm4_moe deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite", "1", true},
    {"first_k_dense_replace", "glm4_moe deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite", "0", true},
    {"n_group", "glm4_moe deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite", "0 1", true},
    {"topk_group", "glm4_moe deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite", "0 1", true},
    {"scoring_func", "glm4_moe minimax_m2 deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite", "\"softmax\"",
     true},
    {"num_nextn_predict_layers", "glm4_moe ernie4_5_moe deepseek_v3 kimi_k2 glm4_moe_lite", "0", true},
    {"num_mtp_layers", "glm4_moe deepseek_v3 kimi_k2 glm4_moe_lite", "0", true},
    {"swiglu_alpha", "gpt_oss", "", true},
    {"moe_num_experts", "ernie4_5_moe", ""},
    {"moe_k", "ernie4_5_moe", ""},
    {"moe_num_shared_experts", "ernie4_5_moe", ""},
    {"moe_layer_start_index", "ernie4_5_moe", ""},
    {"moe_layer_end_index", "ernie4_5_moe", ""},
    {"moe_layer_interval", "ernie4_5_moe", ""},
    {"moe_norm_min", "ernie4_5_moe", ""},
    {"moe_topk", "hunyuan_v1_moe", ""},
    {"q_lora_rank", "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite minicpm3", "", true},
    {"kv_lora_rank", "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite minicpm3", "", true},
    {"qk_rope_head_dim", "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite minicpm3", "", true},
    {"qk_nope_head_dim", "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite minicpm3", "", true},
    {"v_head_dim", "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite minicpm3", "", true},
    {"qk_head_dim", "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite minicpm3", ""},
    {"rope_interleave", "deepseek_v3 kimi_k2 glm4_moe_lite", "false", true},
    {"topk_method", "deepseek_v2", "\"noaux_tc\""},
    {"mlp_layer_types", "glm4_moe_lite", "", true},
    {"moe_layer_freq", "", "1", true},
};

// Without an effect on the logits.
constexpr Words kHarmless =
    // Where it comes from and how it was made.
    "_name_or_path name_or_path _commit_hash architectures transformers_version torch_dtype "
    "dtype tokenizer_class initializer_range pretraining_tp is_llama_config celer_synthetic "
    "_sliding_window_pattern transformers.js_config unsloth_fixed unsloth_version model_max_length "
    "altup_coef_clip altup_lr_multiplier "  // training
    "max_sequence_length seq_length is_decoder tie_encoder_decoder finetuning_task "
    "task_specific_params prefix "
    // Training.
    "attention_dropout hidden_dropout attn_pdrop embd_pdrop resid_pdrop resid_dropout "
    "dropout classifier_dropout layerdrop gradient_checkpointing router_aux_loss_coef "
    "router_jitter_noise output_router_logits use_bfloat16 problem_type id2label label2id "
    "initial_context_length experts_per_token "  // others say it
    "eod_token_id "
    "num_labels aux_loss_alpha seq_aux reorder_and_upcast_attn summary_type summary_use_proj "
    "summary_activation "
    "summary_proj_to_labels "
    "summary_first_dropout embedding_dropout residual_dropout init_std activation_dropout n_ctx "
    // How a framework runs it, and what it gives back.
    "use_cache return_dict use_return_dict output_attentions output_hidden_states "
    "torchscript tf_legacy_loss chunk_size_feed_forward keys_to_ignore_at_inference "
    "attn_implementation _attn_implementation _attn_implementation_autoset "
    "_attn_implementation_internal experts_implementation _experts_implementation "
    "_experts_implementation_internal _flash_attn_2_enabled use_flash_attn "
    "use_flash_attention tie_last_hidden_states base_model_tp_plan base_model_pp_plan "
    "base_model_ep_plan ep_size tp_size "
    // Tokens, which the tokenizer and generation_config.json know.
    "bos_token_id eos_token_id eod_token_id pad_token_id unk_token_id sep_token_id cls_token_id "
    "mask_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id "
    // Sampling, which requests know.
    "assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens "
    "diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size "
    "encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty "
    "length_penalty max_length max_new_tokens min_length no_repeat_ngram_size "
    "num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams "
    "num_return_sequences output_scores remove_invalid_values repetition_penalty "
    "return_dict_in_generate suppress_tokens target_lookbehind temperature top_k top_p "
    "typical_p ";

// Known to change the result in the models that have them, and not implemented here: refused unless the value
// changes nothing. null is always neutral, and so is an empty list or object.
struct RefusedKey {
  std::string_view key;
  Words neutral;
};

constexpr RefusedKey kRefused[] = {
    // Attention.
    {"is_causal", "true"},
    {"is_encoder_decoder", "false"},
    {"add_cross_attention", "false"},
    {"cross_attention_hidden_size", ""},
    {"sparse_config", ""},
    {"attention_sinks", "false 0"},
    {"clip_qkv", ""},
    {"pruned_heads", ""},
    {"scale_attn_by_inverse_layer_idx", "false"},
    // Norms.
    {"layer_norm_elementwise_affine", "true"},
    // Positions.
    {"rope_interleaved", "false"},
    {"use_mrope", "false"},
    {"rotary_pct", "1"},
    {"rotary_percentage", "1"},
    {"rotary_emb_fraction", "1"},
    // Scales and caps.
    {"normalize_embedding", "false"},
    // Feed-forward layers and experts.
    // MLX's own way to say that weights are quantized.
    {"quantization", ""},
};

// The value as JSON with whole numbers as such: 1.0 is 1.
bool Neutral(const nlohmann::json& value, Words neutral) {
  if (value.is_null() || ((value.is_array() || value.is_object()) && value.empty())) return true;
  std::string text = JsonText(value);
  if (value.is_number_float() && std::abs(value.get<double>()) < 1e15 &&
      value.get<double>() == std::floor(value.get<double>()))
    text = std::to_string(static_cast<int64_t>(value.get<double>()));
  return Holds(neutral, text);
}

std::string Short(const nlohmann::json& value) {
  return Printable(JsonText(value), 60);
}

// A key may have several rows, with other families each.
template <class Rows>
bool ReadBy(const Rows& rows, std::string_view key, std::string_view family) {
  return std::any_of(std::begin(rows), std::end(rows),
                     [&](const auto& row) { return row.key == key && Holds(row.families, family); });
}

Error NotImplemented(const JsonFields& json, const std::string& key, const nlohmann::json& value,
                     const DecoderConfig& config) {
  return Error::Unsupported(json.where(), ": '", key, "' is ", Short(value),
                            ", which is not implemented for models of the type '", config.architecture, "'");
}

// ---- Keys of GGUF, behind the name of the architecture ----

constexpr Words kGgufUsed =
    "block_count context_length embedding_length feed_forward_length attention.head_count "
    "attention.head_count_kv attention.key_length attention.value_length "
    "attention.layer_norm_rms_epsilon attention.layer_norm_epsilon attention.sliding_window "
    "rope.dimension_count "
    "rope.freq_base rope.scale_linear rope.scaling.type rope.scaling.factor "
    "rope.scaling.attn_factor rope.scaling.original_context_length "
    "rope.scaling.yarn_log_multiplier rope.scaling.yarn_beta_fast "
    "rope.scaling.yarn_beta_slow expert_count expert_used_count expert_feed_forward_length "
    "expert_shared_feed_forward_length nextn_predict_layers ";

constexpr Words kGgufHarmless =
    "vocab_size "                 // the embedding has it
    "tensor_data_layout "         // the only one there is, for this container
    "rope.scaling.finetuned "     // how it was trained
    "leading_dense_block_count "  // the tensors say which layers have experts
    "interleave_moe_layer_step "
    "expert_shared_count "  // the tensors say it
    "decoder_start_token_id "
    "embedding_length_out "  // of pooled embeddings
    "pooling_type ";

struct RefusedGgufKey {
  std::string_view key;
  Words neutral;        // numbers; false is 0 and true is 1
  Words families = {};  // that read it
};

constexpr RefusedGgufKey kGgufRefused[] = {
    {"use_parallel_residual", "0", "gpt_neox stablelm"},
    {"logit_scale", "0 1", "cohere cohere2"},
    {"residual_scale", "0 1"},
    {"embedding_scale", "0 1"},
    {"embedding_scale", "0 1", "granite granitemoe granitemoehybrid minicpm"},
    {"residual_scale", "0 1", "granite granitemoe granitemoehybrid minicpm"},
    {"logit_scale", "0 1", "granite granitemoe granitemoehybrid minicpm"},
    {"attention.scale", "0", "granite granitemoe granitemoehybrid"},
    {"attention.temperature_scale", "0", "ministral3"},
    {"attn_logit_softcapping", "0", "gemma2"},
    {"final_logit_softcapping", "0", "gemma2 gemma3 gemma3n gemma4"},
    {"router_logit_softcapping", "0"},
    {"ssm.conv_kernel", "0", "qwen3_next qwen3_5_text qwen3_5_moe_text granitemoehybrid nemotron_h"},
    {"ssm.state_size", "0", "qwen3_next qwen3_5_text qwen3_5_moe_text granitemoehybrid nemotron_h"},
    {"ssm.group_count", "0", "qwen3_next qwen3_5_text qwen3_5_moe_text granitemoehybrid nemotron_h"},
    {"ssm.time_step_rank", "0", "qwen3_next qwen3_5_text qwen3_5_moe_text granitemoehybrid nemotron_h"},
    {"ssm.inner_size", "0", "qwen3_next qwen3_5_text qwen3_5_moe_text granitemoehybrid nemotron_h"},
    {"full_attention_interval", "0", "qwen3_next qwen3_5_text qwen3_5_moe_text"},
    {"swin_norm", "0"},
    {"attention.causal", "1"},
    {"attention.scale", "0"},
    {"attention.output_scale", "0 1"},
    {"attention.clamp_kqv", "0", "mpt"},
    {"attention.max_alibi_bias", "0", "mpt"},
    {"attention.sliding_window_pattern", "", "gemma2 gemma3 gemma3n gemma4 llama4 olmo2 exaone4"},
    {"attention.temperature_length", "0"},
    {"attention.temperature_scale", "0"},
    {"attention.shared_kv_layers", "0", "gemma3n gemma4"},
    {"embedding_length_per_layer_input", "0", "gemma3n gemma4"},
    {"altup.num_inputs", "", "gemma3n"},
    {"altup.active_idx", "", "gemma3n"},
    {"activation_sparsity_scale", "", "gemma3n"},
    {"attention.q_lora_rank", "0", "deepseek_v2 minicpm3"},
    {"attention.kv_lora_rank", "0", "deepseek_v2 minicpm3"},
    {"attention.key_length_mla", "0", "deepseek_v2"},
    {"attention.value_length_mla", "0", "deepseek_v2"},
    {"attention.key_length_swa", "", "gemma4"},
    {"attention.value_length_swa", "", "gemma4"},
    {"rope.dimension_count_swa", "", "gemma4"},
    {"rope.freq_base_swa", "", "gemma3 gemma3n gemma4 olmo2"},
    {"rope.dimension_sections", "", "qwen3_5_text qwen3_5_moe_text"},
    {"rope.scaling.alpha", "0 1"},
    {"rope.scaling.yarn_attn_factor", "1"},
};

// llama.cpp's switch between YaRN and plain interpolation; negative: as the type of scaling says.
bool NeutralExtFactor(double value, const RopeConfig& rope) {
  return value < 0 || value == (rope.scaling == RopeConfig::Scaling::kYarn ? 1 : 0);
}

// What is read for some families, who must then have what the file says: 0 means the default.
std::optional<double> RouterNumber(std::string_view key, const MoeConfig& moe) {
  if (key == "expert_group_count") return static_cast<double>(moe.groups);
  if (key == "expert_group_used_count") return static_cast<double>(moe.groups_used);
  if (key == "expert_weights_scale") return moe.routed_scale;
  if (key == "expert_gating_func") return moe.score == RouterScore::kSigmoid ? 2 : 1;  // 1: softmax
  return std::nullopt;
}

}  // namespace

Status CheckHfKeys(const JsonFields& json, DecoderConfig* config) {
  if (const auto* quantized = json.Find(published::kConfigKey); quantized && !Neutral(*quantized, {})) {
    CELER_ASSIGN(const JsonFields fields, JsonFields::Of(*quantized, published::Where(json.where())));
    CELER_RETURN_IF_ERROR(published::Describe(fields));
  }
  for (const auto& item : json.json().items()) {
    const std::string& key = item.key();  // no structured binding: a lambda below needs it
    const nlohmann::json& value = item.value();
    if (Holds(kUsed, key) || Holds(kHarmless, key) || key == published::kConfigKey) continue;

    const auto of_family = std::find_if(std::begin(kFamilyKeys), std::end(kFamilyKeys),
                                        [&](const auto& row) { return row.key == key; });
    if (of_family != std::end(kFamilyKeys)) {
      if (ReadBy(kFamilyKeys, key, config->family) || Neutral(value, of_family->neutral)) continue;
      // What a model without windows says about their layers.
      if (key == "max_window_layers" && config->sliding_window == 0) continue;
      if (of_family->refused) return NotImplemented(json, key, value, *config);
      config->warnings.push_back(
          fmt::format("{}: '{}' is {}, which models of the type '{}' do not use; it is ignored", json.where(),
                      key, Short(value), config->architecture));
      continue;
    }
    const auto refused = std::find_if(std::begin(kRefused), std::end(kRefused),
                                      [&](const auto& row) { return row.key == key; });
    if (refused != std::end(kRefused)) {
      if (Neutral(value, refused->neutral)) continue;
      return NotImplemented(json, key, value, *config);
    }
    if (key == "auto_map") {
      config->warnings.push_back(fmt::format(
          "{}: 'auto_map' names code of the model's own, which is not run; the model runs as a plain '{}'",
          json.where(), config->architecture));
      continue;
    }
    if (value.is_null()) continue;
    config->warnings.push_back(fmt::format("{}: '{}' is {}, a key that is not known here; it is ignored",
                                           json.where(), Printable(key, 60), Short(value)));
  }
  return {};
}

Status CheckGgufKeys(const GgufReader& reader, DecoderConfig* config) {
  const std::string prefix = reader.architecture() + ".";
  for (const GgufValue& value : reader.file().metadata()) {
    if (!value.key.starts_with(prefix)) continue;
    const std::string_view key = value.key.substr(prefix.size());
    if (Holds(kGgufUsed, key) || Holds(kGgufHarmless, key)) continue;

    std::optional<double> number = reader.file().GetFloat(value.key);
    if (const auto flag = reader.file().GetBool(value.key)) number = *flag ? 1 : 0;
    const std::string text = Printable(value.ToText(4), 60);
    const auto refused = std::find_if(std::begin(kGgufRefused), std::end(kGgufRefused),
                                      [&](const auto& row) { return row.key == key; });
    bool known = refused != std::end(kGgufRefused), neutral = false;
    if (known && ReadBy(kGgufRefused, key, config->family)) continue;
    if (known) neutral = number && Holds(refused->neutral, fmt::format("{}", *number));
    if (const auto as_read = RouterNumber(key, config->moe)) {
      known = true;
      neutral = number && (*number == 0 || *number == *as_read);
    } else if (key == "rope.scaling.yarn_ext_factor") {
      known = true;
      neutral = number && NeutralExtFactor(*number, config->rope);
    } else if (key == "rope.scaling.yarn_attn_factor") {
      // llama.cpp computes it from the factor; some files hold the same number once more.
      neutral = neutral || (number && config->rope.scaling == RopeConfig::Scaling::kYarn &&
                            std::abs(*number - config->rope.attention_factor) < 1e-4);
    } else if (key == "expert_weights_norm") {
      known = true;
      neutral = number && (*number != 0) == config->moe.normalize_top;
    }
    if (neutral) continue;
    if (known)
      return Error::Unsupported(reader.path(), ": metadata key '", Printable(value.key, 80), "' is ", text,
                                ", which is not implemented for the architecture '", config->architecture,
                                "'");
    config->warnings.push_back(
        fmt::format("{}: metadata key '{}' is {}, a key that is not known here; it is ignored", reader.path(),
                    Printable(value.key, 80), text));
  }
  return {};
}

}  // namespace celer
