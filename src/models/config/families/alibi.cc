// Families whose scores fall with the distance of a key instead of rope (ALiBi): BLOOM and MPT.
#include "io/file/printable.h"
#include "models/config/families/families.h"
#include "models/load/gguf_reader.h"

namespace celer::families {
namespace {

constexpr float kMostAlibi = 8;

// As many keys as queries, four times as many columns, and no rope.
void AlibiShape(DecoderConfig* config) {
  config->intermediate = 4 * config->hidden;
  config->alibi_max = kMostAlibi;
  WithoutRope(config);
}

// What "attn_config" of MPT may say; the class in transformers ignores some of it, and these would be other models.
Status CheckMptAttention(const JsonFields& attention) {
  const struct {
    const char* key;
    nlohmann::json is;
  } fixed[] = {{"alibi", true},
               {"alibi_bias_max", kMostAlibi},
               {"attn_type", "multihead_attention"},
               {"prefix_lm", false},
               {"qk_ln", false},
               {"qk_gn", false},
               {"rope", false},
               {"attn_uses_sequence_id", false}};
  for (const auto& row : fixed)
    if (const nlohmann::json* value = attention.Find(row.key); value && *value != row.is)
      return Error::Unsupported(attention.where(), ": '", row.key, "' is ", Printable(JsonText(*value), 60),
                                ", which is not implemented for models of the type 'mpt'; supported is ",
                                JsonText(row.is));
  return {};
}

}  // namespace

Status BloomFromHf(const JsonFields&, DecoderConfig* config) {
  LayerNormWithBias(config);
  PlainMlp(true, config);
  AlibiShape(config);
  config->qkv_bias = config->o_bias = true;
  config->embedding_norm = true;
  return {};
}

Status BloomFromGguf(const GgufFile&, DecoderConfig* config) {
  LayerNormWithBias(config);
  PlainMlp(true, config);
  config->alibi_max = kMostAlibi;
  WithoutRope(config);
  config->qkv_bias = config->o_bias = true;
  config->embedding_norm = true;
  config->activation = Activation::kGeluTanh;
  return {};
}

void BloomHfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Prefix("transformer.", "");
  rules->Rename("word_embeddings.weight", to.embedding);
  RenamePair("word_embeddings_layernorm", to.embedding_norm, to.embedding_norm_bias, rules);
  RenamePair("ln_f", to.norm, to.norm_bias, rules);
  const std::string layer = "h.%.";
  RenamePair(layer + "input_layernorm", to.attention_norm, to.attention_norm_bias, rules);
  RenamePair(layer + "post_attention_layernorm", to.ffn_norm, to.ffn_norm_bias, rules);
  SplitQkv(layer + "self_attention.query_key_value", c.heads, c, rules);
  RenamePair(layer + "self_attention.dense", to.o, to.o_bias, rules);
  RenamePair(layer + "mlp.dense_h_to_4h", to.up, to.up_bias, rules);
  RenamePair(layer + "mlp.dense_4h_to_h", to.down, to.down_bias, rules);
}

Status MptFromHf(const JsonFields& json, DecoderConfig* config) {
  config->norm = NormKind::kLayer;
  config->activation = Activation::kGelu;
  PlainMlp(false, config);
  AlibiShape(config);
  if (!json.Has("attn_config")) return {};
  CELER_ASSIGN(const JsonFields attention, json.GetObject("attn_config"));
  CELER_RETURN_IF_ERROR(CheckMptAttention(attention));
  CELER_ASSIGN(const double clip, attention.GetDouble("clip_qkv", 0));
  CELER_ASSIGN(const double scale, attention.GetDouble("softmax_scale", 0));
  if (attention.Has("softmax_scale") && scale == 0)
    return Error::Unsupported(attention.where(), ": 'softmax_scale' is 0, which makes all scores equal");
  config->qkv_clip = static_cast<float>(clip);
  config->attention_scale = static_cast<float>(scale);
  return {};
}

Status MptFromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), config->architecture);
  config->norm = NormKind::kLayer;
  config->activation = Activation::kGelu;
  PlainMlp(false, config);
  CELER_ASSIGN(const double most, reader.Float("attention.max_alibi_bias", 0));
  CELER_ASSIGN(const double clip, reader.Float("attention.clamp_kqv", 0));
  if (most <= 0)
    return Error::Unsupported(reader.path(), ": metadata key 'mpt.attention.max_alibi_bias' is ", most,
                              "; only models with ALiBi are supported");
  config->alibi_max = static_cast<float>(most);
  config->qkv_clip = static_cast<float>(clip);
  WithoutRope(config);
  return {};
}

void MptHfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  rules->Prefix("transformer.", "");
  rules->Rename("wte.weight", to.embedding);
  rules->Rename("norm_f.weight", to.norm);
  const std::string layer = "blocks.%.";
  rules->Rename(layer + "norm_1.weight", to.attention_norm);
  rules->Rename(layer + "norm_2.weight", to.ffn_norm);
  rules->Split(layer + "attn.Wqkv.weight", {{to.q, c.hidden}, {to.k, c.hidden}, {to.v, c.hidden}});
  rules->Rename(layer + "attn.out_proj.weight", to.o);
  rules->Rename(layer + "ffn.up_proj.weight", to.up);
  rules->Rename(layer + "ffn.down_proj.weight", to.down);
}

}  // namespace celer::families
