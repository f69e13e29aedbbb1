// GPT-2 (learned positions), GPT-NeoX and Pythia (partial rope, attention and feed-forward block in parallel), GPT-J (the
// same with one norm for both, rope over neighbouring pairs, a bias on the head).
#include "models/config/families/families.h"

namespace celer::families {
namespace {

// `key`: four times the hidden size if it is missing or null.
Status InnerSize(const JsonFields& json, const char* key, DecoderConfig* config) {
  CELER_ASSIGN(config->intermediate,
               HfInt(json, key, 1, int64_t{1} << 30, 4 * config->hidden, 4 * config->hidden));
  return {};
}

}  // namespace

Status Gpt2FromHf(const JsonFields& json, DecoderConfig* config) {
  LayerNormWithBias(config);
  LearnedPositions(0, config);
  config->qkv_bias = config->o_bias = true;
  PlainMlp(true, config);
  CELER_ASSIGN(const bool scaled, json.GetBool("scale_attn_weights", true));
  if (!scaled) config->attention_scale = 1;
  return InnerSize(json, "n_inner", config);
}

Status Gpt2FromGguf(const GgufFile&, DecoderConfig* config) {
  LayerNormWithBias(config);
  LearnedPositions(0, config);
  config->qkv_bias = true;
  PlainMlp(true, config);
  config->activation = Activation::kGeluTanh;
  return {};
}

Status GptNeoxFromHf(const JsonFields& json, DecoderConfig* config) {
  LayerNormWithBias(config);
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", true));
  config->o_bias = config->qkv_bias;
  PlainMlp(true, config);
  CELER_ASSIGN(config->parallel_block, json.GetBool("use_parallel_residual", true));
  config->parallel_norms = config->parallel_block;
  return {};
}

Status GptNeoxFromGguf(const GgufFile& file, DecoderConfig* config) {
  LayerNormWithBias(config);
  config->qkv_bias = file.Find("blk.0.attn_qkv.bias") != nullptr;
  PlainMlp(true, config);
  config->activation = Activation::kGelu;
  config->parallel_block = file.GetBool("gptneox.use_parallel_residual").value_or(true);
  config->parallel_norms = config->parallel_block;
  return {};
}

Status GptjFromHf(const JsonFields& json, DecoderConfig* config) {
  LayerNormWithBias(config);
  PlainMlp(true, config);
  config->parallel_block = true;
  config->head_bias = true;
  config->rope.layout = RopeLayout::kInterleaved;
  CELER_ASSIGN(config->rope.dim, HfInt(json, "rotary_dim", 1, int64_t{1} << 30, 64));
  return InnerSize(json, "n_inner", config);
}

Status FalconFromHf(const JsonFields& json, DecoderConfig* config) {
  LayerNormWithBias(config);
  CELER_ASSIGN(config->qkv_bias, json.GetBool("bias", false));
  config->o_bias = config->qkv_bias;
  PlainMlp(config->qkv_bias, config);
  CELER_RETURN_IF_ERROR(InnerSize(json, "ffn_hidden_size", config));

  CELER_ASSIGN(const bool grouped, json.GetBool("new_decoder_architecture", false));
  CELER_ASSIGN(const bool one_kv_head, json.GetBool("multi_query", true));
  CELER_ASSIGN(const int64_t kv_heads,
               HfInt(json, "num_kv_heads", 1, int64_t{1} << 30, config->heads, config->heads));
  config->kv_heads = grouped ? kv_heads : one_kv_head ? 1 : config->heads;

  CELER_ASSIGN(config->parallel_block, json.GetBool("parallel_attn", true));
  if (grouped && !config->parallel_block)
    return Error::Unsupported(json.where(),
                              ": 'new_decoder_architecture' is true and 'parallel_attn' is false, which the "
                              "class in transformers cannot run either");
  CELER_ASSIGN(const int64_t norms,
               HfInt(json, "num_ln_in_parallel_attn", 1, 2, grouped ? 2 : 1, grouped ? 2 : 1));
  if (norms == 2 && !grouped)
    return Error::Unsupported(json.where(),
                              ": 'num_ln_in_parallel_attn' is 2 without 'new_decoder_architecture'");
  config->parallel_norms = config->parallel_block && norms == 2;
  return {};
}

// All that llama.cpp runs have attention and feed-forward block in parallel.
Status FalconFromGguf(const GgufFile& file, DecoderConfig* config) {
  LayerNormWithBias(config);
  config->qkv_bias = file.Find("blk.0.attn_qkv.bias") != nullptr;
  PlainMlp(config->mlp_bias, config);
  config->activation = Activation::kGelu;
  config->parallel_block = true;
  config->parallel_norms = file.Find("blk.0.attn_norm_2.weight") != nullptr;
  return {};
}

}  // namespace celer::families
