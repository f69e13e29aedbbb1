#include "models/family.h"

#include <algorithm>

#include "core/suggest.h"
#include "models/families/families.h"

namespace celer {
namespace {

constexpr int64_t kAny = int64_t{1} << 30;  // Validate() knows the true bounds

constexpr ExpertNames kMixtralExperts = {"block_sparse_moe.gate.weight",
                                         "block_sparse_moe.experts.",
                                         ".w1.weight",
                                         ".w3.weight",
                                         ".w2.weight",
                                         nullptr,
                                         nullptr};
constexpr ExpertNames kQwen2Experts = {"mlp.gate.weight",
                                       "mlp.experts.",
                                       ".gate_proj.weight",
                                       ".up_proj.weight",
                                       ".down_proj.weight",
                                       "mlp.shared_expert",
                                       "mlp.shared_expert_gate.weight"};
constexpr ExpertNames kQwen3Experts = {
    "mlp.gate.weight", "mlp.experts.", ".gate_proj.weight", ".up_proj.weight", ".down_proj.weight",
    nullptr,           nullptr};

constexpr Family kFamilies[] = {
    {"llama",
     "llama",
     "llama",
     "Llama 2/3/3.1/3.2, TinyLlama, SmolLM2",
     families::LlamaFromHf,
     families::LlamaFromGguf,
     {}},
    {"mistral", "mistral", nullptr, "Mistral 7B", families::MistralFromHf, nullptr, {}},
    {"mixtral", "mixtral", nullptr, "Mixtral 8x7B", families::MixtralFromHf, nullptr, kMixtralExperts},
    {"qwen2",
     "qwen2",
     "qwen2",
     "Qwen1.5, Qwen2, Qwen2.5",
     families::Qwen2FromHf,
     families::Qwen2FromGguf,
     {}},
    {"qwen3", "qwen3", "qwen3", "Qwen3", families::Qwen3FromHf, families::Qwen3FromGguf, {}},
    {"qwen2_moe", "qwen2_moe", "qwen2moe", "Qwen1.5-MoE, Qwen2-57B-A14B", families::Qwen2MoeFromHf,
     families::Qwen2MoeFromGguf, kQwen2Experts},
    {"qwen3_moe", "qwen3_moe", "qwen3moe", "Qwen3-30B-A3B", families::Qwen3MoeFromHf,
     families::Qwen3MoeFromGguf, kQwen3Experts},
};

Status ReadActivation(const std::string& name, const std::string& path, DecoderConfig* config) {
  if (name == "silu" || name == "swish")
    config->activation = Activation::kSilu;
  else if (name == "gelu")
    config->activation = Activation::kGelu;
  else if (name == "gelu_pytorch_tanh" || name == "gelu_new")
    config->activation = Activation::kGeluTanh;
  else if (name == "relu")
    config->activation = Activation::kRelu;
  else
    return Error::Unsupported(path, ": activation '", name,
                              "'; silu, gelu, gelu_pytorch_tanh and relu are supported");
  return {};
}

Status ReadScalingKind(const std::string& kind, const std::string& path, RopeConfig* rope) {
  if (kind.empty() || kind == "default" || kind == "none")
    rope->scaling = RopeConfig::Scaling::kNone;
  else if (kind == "linear")
    rope->scaling = RopeConfig::Scaling::kLinear;
  else if (kind == "llama3")
    rope->scaling = RopeConfig::Scaling::kLlama3;
  else if (kind == "yarn")
    rope->scaling = RopeConfig::Scaling::kYarn;
  else
    return Error::Unsupported(path, ": rope scaling '", kind, "'; linear, llama3 and yarn are supported");
  return {};
}

// "rope_theta" and "rope_scaling", or both in one object "rope_parameters" as newer files have it.
Status ReadRope(const JsonFields& json, DecoderConfig* config) {
  RopeConfig& rope = config->rope;
  CELER_ASSIGN(rope.theta, json.GetDouble("rope_theta", rope.theta));
  CELER_ASSIGN(const double partial, json.GetDouble("partial_rotary_factor", 1.0));
  if (!(partial > 0 && partial <= 1))
    return Error::Corrupt(json.where(), ": 'partial_rotary_factor' is ", partial, ", expected 0 to 1");
  rope.dim = static_cast<int64_t>(static_cast<double>(config->head_dim) * partial);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!json.Has(key)) continue;
    CELER_ASSIGN(const JsonFields fields, json.GetObject(key));
    CELER_ASSIGN(const std::string old_kind, fields.GetString("type", ""));
    CELER_ASSIGN(const std::string kind, fields.GetString("rope_type", old_kind));
    CELER_RETURN_IF_ERROR(ReadScalingKind(kind, fields.where(), &rope));
    CELER_ASSIGN(rope.theta, fields.GetDouble("rope_theta", rope.theta));
    CELER_ASSIGN(rope.factor, fields.GetDouble("factor", rope.factor));
    CELER_ASSIGN(rope.low_freq_factor, fields.GetDouble("low_freq_factor", rope.low_freq_factor));
    CELER_ASSIGN(rope.high_freq_factor, fields.GetDouble("high_freq_factor", rope.high_freq_factor));
    CELER_ASSIGN(rope.original_positions, fields.GetDouble("original_max_position_embeddings", 0.0));
    CELER_ASSIGN(rope.beta_fast, fields.GetDouble("beta_fast", rope.beta_fast));
    CELER_ASSIGN(rope.beta_slow, fields.GetDouble("beta_slow", rope.beta_slow));
    CELER_ASSIGN(rope.attention_factor, fields.GetDouble("attention_factor", 0.0));
  }
  const bool extended =
      rope.scaling == RopeConfig::Scaling::kLlama3 || rope.scaling == RopeConfig::Scaling::kYarn;
  if (extended && rope.original_positions == 0)
    rope.original_positions = static_cast<double>(config->max_positions);
  return {};
}

std::string GgufKeyError(const std::string& key) {
  return ": metadata key '" + key + "' is missing or not a number";
}

class GgufReader {
 public:
  GgufReader(const GgufFile& file, std::string path, std::string arch)
      : file_(file), path_(std::move(path)), arch_(std::move(arch)) {}

  Result<int64_t> Int(const std::string& key) const {
    const auto value = file_.GetInt(arch_ + "." + key);
    if (!value) return Error::Corrupt(path_, GgufKeyError(arch_ + "." + key));
    return *value;
  }
  int64_t Int(const std::string& key, int64_t if_missing) const {
    return file_.GetInt(arch_ + "." + key).value_or(if_missing);
  }
  double Float(const std::string& key, double if_missing) const {
    return file_.GetFloat(arch_ + "." + key).value_or(if_missing);
  }
  std::string String(const std::string& key) const {
    return std::string(file_.GetString(arch_ + "." + key).value_or(""));
  }
  bool Has(const std::string& key) const { return file_.Has(arch_ + "." + key); }

 private:
  const GgufFile& file_;
  std::string path_, arch_;
};

}  // namespace

std::span<const Family> Families() {
  return kFamilies;
}

const Family* FindFamily(std::string_view name) {
  for (const Family& family : kFamilies)
    if (name == family.name) return &family;
  return nullptr;
}

std::string SupportedFamilies() {
  std::string out;
  for (const Family& family : kFamilies)
    out += (out.empty() ? "" : ", ") + std::string(family.name) + " (" + family.examples + ")";
  return out;
}

Result<DecoderConfig> ConfigFromHf(const nlohmann::json& json, const std::string& path) {
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, path));
  CELER_ASSIGN(const std::string model_type, fields.GetString("model_type"));
  const Family* family = nullptr;
  for (const Family& row : kFamilies)
    if (model_type == row.model_type) family = &row;
  if (!family)
    return Error::Unsupported(path, ": architecture '", model_type, "' is not supported; supported are ",
                              SupportedFamilies());

  DecoderConfig config;
  config.family = family->name;
  config.architecture = model_type;
  CELER_ASSIGN(config.layers, fields.GetInt("num_hidden_layers", 1, 4096));
  CELER_ASSIGN(config.hidden, fields.GetInt("hidden_size", 1, kAny));
  CELER_ASSIGN(config.intermediate, fields.GetInt("intermediate_size", 1, kAny));
  CELER_ASSIGN(config.heads, fields.GetInt("num_attention_heads", 1, kAny));
  CELER_ASSIGN(config.kv_heads, fields.GetInt("num_key_value_heads", 1, kAny, config.heads));
  CELER_ASSIGN(config.head_dim,
               fields.GetInt("head_dim", 1, kAny, std::max<int64_t>(1, config.hidden / config.heads)));
  CELER_ASSIGN(config.vocab, fields.GetInt("vocab_size", 1, kAny));
  CELER_ASSIGN(config.max_positions, fields.GetInt("max_position_embeddings", 1, kAny, 2048));
  CELER_ASSIGN(const double eps, fields.GetDouble("rms_norm_eps", 1e-6));
  config.norm_eps = static_cast<float>(eps);
  CELER_ASSIGN(config.tied_embeddings, fields.GetBool("tie_word_embeddings", false));
  CELER_ASSIGN(const std::string activation, fields.GetString("hidden_act", "silu"));
  CELER_RETURN_IF_ERROR(ReadActivation(activation, path, &config));
  CELER_RETURN_IF_ERROR(ReadRope(fields, &config));
  CELER_RETURN_IF_ERROR(family->from_hf(fields, &config));
  CELER_RETURN_IF_ERROR(Validate(config, path));
  return config;
}

Result<DecoderConfig> ConfigFromGguf(const GgufFile& file, const std::string& path) {
  const auto arch = file.GetString("general.architecture");
  if (!arch) return Error::Corrupt(path, ": metadata key 'general.architecture' is missing");
  const Family* family = nullptr;
  for (const Family& row : kFamilies)
    if (row.gguf && *arch == row.gguf) family = &row;
  if (!family)
    return Error::Unsupported(path, ": architecture '", *arch, "' is not supported; supported are ",
                              SupportedFamilies());

  const GgufReader reader(file, path, std::string(*arch));
  DecoderConfig config;
  config.family = family->name;
  config.architecture = *arch;
  CELER_ASSIGN(config.layers, reader.Int("block_count"));
  CELER_ASSIGN(config.hidden, reader.Int("embedding_length"));
  CELER_ASSIGN(config.intermediate, reader.Int("feed_forward_length"));
  CELER_ASSIGN(config.heads, reader.Int("attention.head_count"));
  if (config.layers < 1 || config.layers > 4096 || config.heads < 1)
    return Error::Corrupt(path, ": ", config.layers, " layers with ", config.heads, " heads");
  config.kv_heads = reader.Int("attention.head_count_kv", config.heads);
  config.head_dim = reader.Int("attention.key_length", config.hidden / config.heads);
  if (const int64_t value_dim = reader.Int("attention.value_length", config.head_dim);
      value_dim != config.head_dim)
    return Error::Unsupported(path, ": keys of ", config.head_dim, " and values of ", value_dim,
                              " elements; they must be equal");
  config.max_positions = reader.Int("context_length", 2048);
  config.norm_eps = static_cast<float>(reader.Float("attention.layer_norm_rms_epsilon", 1e-5));

  const TensorRecord* embedding = file.Find("token_embd.weight");
  if (!embedding)
    return Error::Corrupt(path,
                          ": tensor 'token_embd.weight' is missing; does the file hold a vocabulary only?");
  config.vocab = embedding->shape[0];
  config.tied_embeddings = file.Find("output.weight") == nullptr;

  config.rope.theta = reader.Float("rope.freq_base", 10000);
  config.rope.dim = reader.Int("rope.dimension_count", config.head_dim);
  const std::string scaling = reader.String("rope.scaling.type");
  CELER_RETURN_IF_ERROR(ReadScalingKind(scaling, path, &config.rope));
  config.rope.factor = reader.Float("rope.scaling.factor", 1);
  if (scaling.empty() && reader.Has("rope.scale_linear")) {  // GGUF's older name
    config.rope.scaling = RopeConfig::Scaling::kLinear;
    config.rope.factor = reader.Float("rope.scale_linear", 1);
  }
  config.rope.original_positions =
      reader.Float("rope.scaling.original_context_length", static_cast<double>(config.max_positions));
  config.rope.attention_factor = reader.Float("rope.scaling.attn_factor", 0);

  config.sliding_window = reader.Int("attention.sliding_window", 0);
  config.windowed_layer.assign(static_cast<size_t>(config.layers), true);

  config.moe.experts = reader.Int("expert_count", 0);
  if (config.moe.experts > 0) {
    config.moe.per_token = reader.Int("expert_used_count", 0);
    config.moe.intermediate = reader.Int("expert_feed_forward_length", config.intermediate);
    for (int64_t i = 0; i < config.layers; ++i)
      config.moe.sparse_layer.push_back(file.Find("blk." + std::to_string(i) + ".ffn_gate_inp.weight") !=
                                        nullptr);
    if (const TensorRecord* shared = file.Find("blk.0.ffn_gate_shexp.weight"))
      config.moe.shared_intermediate = reader.Int("expert_shared_feed_forward_length", shared->shape[0]);
  }
  CELER_RETURN_IF_ERROR(family->from_gguf(file, &config));
  CELER_RETURN_IF_ERROR(Validate(config, path));
  return config;
}

}  // namespace celer
