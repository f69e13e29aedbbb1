// Multi-head latent attention: DeepSeek V2 and V3/R1, Kimi K2, GLM-4.7-Flash, MiniCPM3.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/file/printable.h"
#include "models/config/families/families.h"
#include "models/config/family.h"
#include "models/load/gguf_reader.h"

namespace celer::families {
namespace {

constexpr int64_t kMost = int64_t{1} << 20;  // Validate() knows the true bounds

// What the class takes for a key that config.json does not have.
struct LatentDefaults {
  int64_t q_rank, kv_rank, nope_dim, rope_dim;
  int64_t value_dim;  // 0: hidden / heads
};
constexpr LatentDefaults kDeepseek = {1536, 512, 128, 64, 128};
constexpr LatentDefaults kGlmLite = {768, 512, 192, 64, 256};
constexpr LatentDefaults kMiniCpm3 = {768, 256, 64, 32, 0};

// Factor and multiplier of YaRN that sharpen the scores themselves; `mscale` 0: they do not.
float ScoreScale(const DecoderConfig& c, double mscale) {
  const RopeConfig& rope = c.rope;
  double scale = 1 / std::sqrt(static_cast<double>(c.latent.nope_dim + c.latent.rope_dim));
  if (rope.scaling == RopeConfig::Scaling::kYarn && mscale != 0 && rope.factor > 1) {
    const double sharper = 0.1 * mscale * std::log(rope.factor) + 1;
    scale *= sharper * sharper;
  }
  return static_cast<float>(scale);
}

Result<double> HfScoreMultiplier(const JsonFields& json, const DecoderConfig& c) {
  const nlohmann::json* old = json.Find("rope_scaling");
  const char* key = old && !(old->is_object() && old->empty()) ? "rope_scaling" : "rope_parameters";
  if (!json.Has(key)) return 0.0;
  CELER_ASSIGN(const JsonFields rope, json.GetObject(key));
  CELER_ASSIGN(const double mscale, rope.GetDouble("mscale_all_dim", 0));
  if (mscale != 0 && c.rope.scaling != RopeConfig::Scaling::kYarn &&
      c.rope.scaling != RopeConfig::Scaling::kNone)
    return Error::Unsupported(rope.where(), ": 'mscale_all_dim' is ", mscale,
                              ", which is supported with the rope type 'yarn' only");
  return mscale;
}

// One row for all heads takes the place of keys and values.
void SetLatentShape(DecoderConfig* c) {
  c->kv_heads = 1;
  c->head_dim = c->latent.kv_rank + c->latent.rope_dim;
  c->rope.dim = c->latent.rope_dim;
}

Status LatentFromHf(const JsonFields& json, const LatentDefaults& defaults, DecoderConfig* c) {
  if (c->kv_heads != c->heads)
    return Error::Unsupported(json.where(), ": ", c->heads, " heads and 'num_key_value_heads' of ",
                              c->kv_heads, "; with latent attention they are equal");
  if (c->rope.dim != c->head_dim)
    return Error::Unsupported(json.where(), ": 'partial_rotary_factor', which models of the type '",
                              c->architecture, "' do not have");
  LatentConfig& l = c->latent;
  CELER_ASSIGN(l.q_rank, HfInt(json, "q_lora_rank", 1, kMost, defaults.q_rank, 0));
  CELER_ASSIGN(l.kv_rank, HfInt(json, "kv_lora_rank", 1, kMost, defaults.kv_rank));
  CELER_ASSIGN(l.nope_dim, HfInt(json, "qk_nope_head_dim", 1, kMost, defaults.nope_dim));
  CELER_ASSIGN(l.rope_dim, HfInt(json, "qk_rope_head_dim", 1, kMost, defaults.rope_dim));
  const int64_t even = std::max<int64_t>(1, c->hidden / c->heads);
  CELER_ASSIGN(l.value_dim,
               HfInt(json, "v_head_dim", 1, kMost, defaults.value_dim > 0 ? defaults.value_dim : even,
                     defaults.value_dim > 0 ? std::nullopt : std::optional(even)));
  CELER_ASSIGN(c->qkv_bias, json.GetBool("attention_bias", false));  // of the projections into a rank
  c->o_bias = c->qkv_bias;
  CELER_ASSIGN(const double mscale, HfScoreMultiplier(json, *c));
  c->attention_scale = ScoreScale(*c, mscale);
  SetLatentShape(c);
  return {};
}

struct ExpertDefaults {
  int64_t experts;
  int64_t per_token;  // 0: the key must be there
  int64_t intermediate, shared, dense_layers;
  double routed_scale;
};

// Those of the shared experts, which are one without a gate.
Status ReadExperts(const JsonFields& json, const ExpertDefaults& defaults, DecoderConfig* c) {
  MoeConfig& moe = c->moe;
  CELER_ASSIGN(moe.experts, HfInt(json, "n_routed_experts", 1, 65536, defaults.experts));
  if (defaults.per_token == 0) {
    CELER_ASSIGN(moe.experts_per_token, json.GetInt("num_experts_per_tok", 1, moe.experts));
  } else {
    CELER_ASSIGN(moe.experts_per_token,
                 HfInt(json, "num_experts_per_tok", 1, moe.experts, defaults.per_token));
  }
  CELER_ASSIGN(moe.intermediate, HfInt(json, "moe_intermediate_size", 1, kMost, defaults.intermediate));
  CELER_ASSIGN(const int64_t shared, HfInt(json, "n_shared_experts", 1, 1024, defaults.shared));
  moe.shared_intermediate = shared * moe.intermediate;
  moe.shared_gated = false;
  CELER_ASSIGN(const double scale, json.GetDouble("routed_scaling_factor", defaults.routed_scale));
  moe.routed_scale = static_cast<float>(scale);
  CELER_ASSIGN(const int64_t dense,
               HfInt(json, "first_k_dense_replace", 0, int64_t{1} << 30, defaults.dense_layers));
  for (int64_t i = 0; i < c->layers; ++i) moe.sparse_layer.push_back(i >= dense);
  return {};
}

// More experts than the chosen groups have would be chosen among those that are out.
Status CheckGroups(const MoeConfig& moe, const std::string& where) {
  const int64_t size = moe.experts / moe.groups, least = moe.group_by_best_two && moe.groups > 1 ? 2 : 1;
  if (moe.experts % moe.groups != 0 || size < least || moe.groups_used > moe.groups ||
      moe.experts_per_token > moe.groups_used * size)
    return Error::Unsupported(where, ": ", moe.experts_per_token, " of ", moe.experts, " experts from ",
                              moe.groups_used, " of ", moe.groups, " groups are not supported");
  return {};
}

Status ReadSigmoidRouter(const JsonFields& json, int64_t groups, int64_t used, DecoderConfig* c) {
  c->moe.groups = groups;
  c->moe.groups_used = used;
  CELER_RETURN_IF_ERROR(DeepSeekRouterFromHf(json, c));
  return CheckGroups(c->moe, json.where());
}

Status ReadInterleave(const JsonFields& json, DecoderConfig* c) {
  CELER_ASSIGN(const bool interleave,
               json.GetBool("rope_interleave", !json.json().contains("rope_interleave")));
  c->rope.layout = interleave ? RopeLayout::kInterleaved : RopeLayout::kHalf;
  return {};
}

// "mlp_layer_types": "dense" or "sparse" for each layer; the first alone is dense without it.
Status ReadMlpTypes(const JsonFields& json, DecoderConfig* c) {
  std::vector<bool>& sparse = c->moe.sparse_layer;
  for (int64_t i = 0; i < c->layers; ++i) sparse[i] = i > 0;
  const nlohmann::json* types = json.Find("mlp_layer_types");
  if (!types) return {};
  if (!types->is_array() || static_cast<int64_t>(types->size()) != c->layers)
    return Error::Corrupt(json.where(), ": 'mlp_layer_types' is not a list of ", c->layers,
                          " names, one for each layer");
  for (int64_t i = 0; i < c->layers; ++i) {
    const nlohmann::json& type = (*types)[static_cast<size_t>(i)];
    sparse[i] = type == "sparse";
    if (!sparse[i] && type != "dense")
      return Error::Unsupported(json.where(), ": 'mlp_layer_types' names ", Printable(JsonText(type), 60),
                                "; supported are \"dense\" and \"sparse\"");
  }
  return {};
}

// ---- GGUF ----

Status LatentFromReader(const GgufReader& reader, DecoderConfig* c) {
  LatentConfig& l = c->latent;
  CELER_ASSIGN(l.kv_rank, reader.Int("attention.kv_lora_rank"));
  CELER_ASSIGN(l.q_rank, reader.Int("attention.q_lora_rank", 0));
  l.rope_dim = c->rope.dim;
  // Of a head; older files have no keys of their own for it.
  const int64_t even = c->hidden / c->heads;
  CELER_ASSIGN(const int64_t key, reader.Int("attention.key_length", even));
  CELER_ASSIGN(const int64_t value, reader.Int("attention.value_length", even));
  CELER_ASSIGN(const int64_t key_dim, reader.Int("attention.key_length_mla", key));
  CELER_ASSIGN(l.value_dim, reader.Int("attention.value_length_mla", value));
  l.nope_dim = key_dim - l.rope_dim;
  for (const int64_t n : {l.kv_rank, l.rope_dim, l.nope_dim, l.value_dim, key_dim})
    if (n < 1 || n > kMost)
      return Error::Corrupt(reader.path(), ": heads of ", key_dim, ", ", l.rope_dim,
                            " of them rotated, values of ", l.value_dim, " and a latent row of ", l.kv_rank,
                            " are not those of latent attention");
  c->qkv_bias = c->o_bias = false;
  SetLatentShape(c);
  return {};
}

Status GgufRouter(const GgufFile& file, const GgufReader& reader, DecoderConfig* c) {
  MoeConfig& moe = c->moe;
  if (moe.experts == 0) return {};
  // GLM-4.7-Flash's first files do not say it.
  const bool glm = (c->layers == 47 || c->layers == 48) && c->vocab == 154880;
  moe.score = glm ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  moe.normalize_top = false;
  CELER_RETURN_IF_ERROR(RouterFromGguf(file, c));
  const bool sigmoid = moe.score == RouterScore::kSigmoid;
  moe.group_by_best_two = sigmoid;
  moe.normalize_eps = sigmoid ? 1e-20f : 0;
  return CheckGroups(moe, reader.path());
}

}  // namespace

Status DeepseekV2FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(LatentFromHf(json, kDeepseek, config));
  config->rope.layout = RopeLayout::kInterleaved;
  CELER_RETURN_IF_ERROR(ReadExperts(json,
                                    {.experts = 64,
                                     .per_token = 0,
                                     .intermediate = 1407,
                                     .shared = 2,
                                     .dense_layers = 0,
                                     .routed_scale = 1},
                                    config));
  MoeConfig& moe = config->moe;
  moe.normalize_top = false;
  CELER_ASSIGN(config->mlp_bias, json.GetBool("mlp_bias", false));  // of the shared experts, too
  CELER_ASSIGN(const bool normalize, json.GetBool("norm_topk_prob", false));
  if (normalize)
    return Error::Unsupported(json.where(),
                              ": 'norm_topk_prob' is true, which transformers and DeepSeek's own "
                              "code read differently for models of the type '",
                              config->architecture, "'");
  CELER_ASSIGN(const std::string method, json.GetString("topk_method", "greedy"));
  if (method == "greedy") return {};
  if (method == "group_limited_greedy") {
    CELER_ASSIGN(moe.groups, HfInt(json, "n_group", 1, moe.experts, 1));
    CELER_ASSIGN(moe.groups_used, HfInt(json, "topk_group", 1, moe.experts, 1));
    return CheckGroups(moe, json.where());
  }
  return Error::Unsupported(json.where(), ": 'topk_method' is '", Printable(method, 40),
                            "'; supported are greedy and group_limited_greedy");
}

Status DeepseekV3FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(LatentFromHf(json, kDeepseek, config));
  CELER_RETURN_IF_ERROR(ReadInterleave(json, config));
  CELER_RETURN_IF_ERROR(ReadExperts(json,
                                    {.experts = 256,
                                     .per_token = 8,
                                     .intermediate = 2048,
                                     .shared = 1,
                                     .dense_layers = 3,
                                     .routed_scale = 2.5},
                                    config));
  return ReadSigmoidRouter(json, 8, 4, config);
}

Status Glm4MoeLiteFromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(LatentFromHf(json, kGlmLite, config));
  CELER_RETURN_IF_ERROR(ReadInterleave(json, config));
  CELER_RETURN_IF_ERROR(ReadExperts(json,
                                    {.experts = 64,
                                     .per_token = 4,
                                     .intermediate = 1536,
                                     .shared = 1,
                                     .dense_layers = 1,
                                     .routed_scale = 1.8},
                                    config));
  CELER_RETURN_IF_ERROR(ReadMlpTypes(json, config));
  return ReadSigmoidRouter(json, 1, 1, config);
}

Status MiniCpm3FromHf(const JsonFields& json, DecoderConfig* config) {
  CELER_RETURN_IF_ERROR(LatentFromHf(json, kMiniCpm3, config));
  CELER_ASSIGN(config->mlp_bias, json.GetBool("mlp_bias", false));
  CELER_ASSIGN(config->tied_embeddings, json.GetBool("tie_word_embeddings", true));
  // null of the last two: the factor is 1.
  const bool no_depth = json.json().contains("scale_depth") && !json.Has("scale_depth");
  const bool no_base = json.json().contains("dim_model_base") && !json.Has("dim_model_base");
  CELER_ASSIGN(const double embedding, json.GetDouble("scale_emb", 12));
  CELER_ASSIGN(const double depth, json.GetDouble("scale_depth", 1.4));
  CELER_ASSIGN(const double base, json.GetDouble("dim_model_base", 256));
  config->embedding_scale = static_cast<float>(embedding);
  config->residual_scale =
      no_depth ? 1.0f : static_cast<float>(depth / std::sqrt(static_cast<double>(config->layers)));
  config->logit_scale = no_base ? 1.0f : static_cast<float>(base / static_cast<double>(config->hidden));
  return {};
}

Status Deepseek2FromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), config->architecture);
  CELER_RETURN_IF_ERROR(LatentFromReader(reader, config));
  config->rope.layout = RopeLayout::kInterleaved;
  // A tenth of mscale_all_dim. llama.cpp takes mscale to be the same, so that nothing is left for the angles.
  CELER_ASSIGN(const double multiplier, reader.Float("rope.scaling.yarn_log_multiplier", 0));
  if (multiplier != 0) {
    CELER_ASSIGN(const double attention, reader.Float("rope.scaling.attn_factor", 1));
    config->rope.attention_factor = attention;
  }
  config->attention_scale = ScoreScale(*config, multiplier * 10);
  return GgufRouter(file, reader, config);
}

Status MiniCpm3FromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), config->architecture);
  CELER_RETURN_IF_ERROR(LatentFromReader(reader, config));
  config->attention_scale = ScoreScale(*config, 0);
  // As llama.cpp has them: files do not say it.
  config->embedding_scale = 12;
  config->residual_scale = 1.4f / std::sqrt(static_cast<float>(config->layers));
  config->logit_scale = 256.0f / static_cast<float>(config->hidden);
  return {};
}

// Behind the last layer.
void LatentHfTensors(const DecoderConfig& c, TensorRules* rules) {
  rules->Skip(fmt::format("model.layers.{}.", c.layers), "multi-token prediction");
}

// Its converter leaves the up-projections of keys and values in one matrix.
void MiniCpm3GgufTensors(const DecoderConfig&, TensorRules* rules) {
  rules->Lacks("blk.%.attn_k_b.weight");
}

void LatentGgufTensors(const DecoderConfig& c, TensorRules* rules) {
  rules->Skip(fmt::format("blk.{}.", c.layers), "multi-token prediction");
}

}  // namespace celer::families
