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
  CELER_ASSIGN(const bool alibi, json.GetBool("alibi", false));
  if (!alibi) return {};
  config->alibi_max = 8;
  config->alibi_rounded = true;
  WithoutRope(config);
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

void Gpt2HfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Prefix("transformer.", "");
  rules->Rename("wte.weight", to.embedding);
  rules->Rename("wpe.weight", to.positions);
  RenamePair("ln_f", to.norm, to.norm_bias, rules);
  const std::string layer = "h.%.";
  RenamePair(layer + "ln_1", to.attention_norm, to.attention_norm_bias, rules);
  RenamePair(layer + "ln_2", to.ffn_norm, to.ffn_norm_bias, rules);
  SplitQkv(layer + "attn.c_attn", 1, c, rules);
  RenamePair(layer + "attn.c_proj", to.o, to.o_bias, rules);
  RenamePair(layer + "mlp.c_fc", to.up, to.up_bias, rules);
  RenamePair(layer + "mlp.c_proj", to.down, to.down_bias, rules);
  // Its products have their columns in the file's rows.
  rules->SplitTransposed(layer + "attn.c_attn.weight",
                         {{to.q, c.hidden}, {to.k, c.hidden}, {to.v, c.hidden}});
  rules->SplitTransposed(layer + "attn.c_proj.weight", {{to.o, c.hidden}});
  rules->SplitTransposed(layer + "mlp.c_fc.weight", {{to.up, c.intermediate}});
  rules->SplitTransposed(layer + "mlp.c_proj.weight", {{to.down, c.hidden}});
}

void GptNeoxHfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Prefix("gpt_neox.", "");
  rules->Rename("embed_in.weight", to.embedding);
  rules->Rename("embed_out.weight", to.head);
  RenamePair("final_layer_norm", to.norm, to.norm_bias, rules);
  const std::string layer = "layers.%.";
  RenamePair(layer + "input_layernorm", to.attention_norm, to.attention_norm_bias, rules);
  RenamePair(layer + "post_attention_layernorm", to.ffn_norm, to.ffn_norm_bias, rules);
  SplitQkv(layer + "attention.query_key_value", c.heads, c, rules);
  RenamePair(layer + "attention.dense", to.o, to.o_bias, rules);
  RenamePair(layer + "mlp.dense_h_to_4h", to.up, to.up_bias, rules);
  RenamePair(layer + "mlp.dense_4h_to_h", to.down, to.down_bias, rules);
}

void GptjHfTensors(const DecoderConfig&, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Prefix("transformer.", "");
  rules->Rename("wte.weight", to.embedding);
  RenamePair("ln_f", to.norm, to.norm_bias, rules);
  const std::string layer = "h.%.";
  RenamePair(layer + "ln_1", to.attention_norm, to.attention_norm_bias, rules);
  RenamePair(layer + "attn.q_proj", to.q, to.q_bias, rules);
  RenamePair(layer + "attn.k_proj", to.k, to.k_bias, rules);
  RenamePair(layer + "attn.v_proj", to.v, to.v_bias, rules);
  RenamePair(layer + "attn.out_proj", to.o, to.o_bias, rules);
  RenamePair(layer + "mlp.fc_in", to.up, to.up_bias, rules);
  RenamePair(layer + "mlp.fc_out", to.down, to.down_bias, rules);
}

void FalconHfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Prefix("transformer.", "");
  rules->Rename("word_embeddings.weight", to.embedding);
  RenamePair("ln_f", to.norm, to.norm_bias, rules);
  const std::string layer = "h.%.";
  const bool two = c.parallel_norms;
  RenamePair(layer + (two ? "ln_attn" : "input_layernorm"), to.attention_norm, to.attention_norm_bias, rules);
  RenamePair(layer + (two ? "ln_mlp" : "post_attention_layernorm"), to.ffn_norm, to.ffn_norm_bias, rules);
  SplitQkv(layer + "self_attention.query_key_value", c.kv_heads, c, rules);
  RenamePair(layer + "self_attention.dense", to.o, to.o_bias, rules);
  RenamePair(layer + "mlp.dense_h_to_4h", to.up, to.up_bias, rules);
  RenamePair(layer + "mlp.dense_4h_to_h", to.down, to.down_bias, rules);
}

void FalconGgufTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  FusedQkvGgufTensors(c, rules);
  if (!c.parallel_norms) return;
  RenamePair("blk.%.attn_norm_2", to.attention_norm, to.attention_norm_bias, rules);
  RenamePair("blk.%.attn_norm", to.ffn_norm, to.ffn_norm_bias, rules);
}

}  // namespace celer::families
