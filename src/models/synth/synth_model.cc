// What a synthetic model is: its config.json and its tensors, in both containers.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "formats/decode.h"
#include "models/config/part_names.h"
#include "models/load/gguf_keys.h"
#include "models/load/tensor_names.h"
#include "models/synth/synth.h"

namespace celer {
namespace {

// Facts that a shape does not hold, from the config.json of each series. The longest prefix of the name wins.
struct Series {
  std::string_view prefix;
  double theta;
  int64_t positions;
  double norm_eps;
  int64_t sliding_window = 0;
  double llama3_factor = 0;  // 0: no scaling
};

constexpr Series kSeries[] = {
    {"", 10000, 4096, 1e-5},
    {"llama-2", 10000, 4096, 1e-5},
    {"llama-3", 500000, 8192, 1e-5},
    {"llama-3.1", 500000, 131072, 1e-5, 0, 8},
    {"llama-3.2", 500000, 131072, 1e-5, 0, 32},
    {"llama-3.3", 500000, 131072, 1e-5, 0, 8},
    {"tinyllama", 10000, 2048, 1e-5},
    {"smollm2", 100000, 8192, 1e-5},
    {"smollm2-1.7b", 130000, 8192, 1e-5},
    {"qwen1.5", 1000000, 32768, 1e-6},
    {"qwen2.5", 1000000, 32768, 1e-6},
    {"qwen3", 1000000, 40960, 1e-6},
    {"mistral", 10000, 32768, 1e-5, 4096},
    {"mixtral", 1000000, 32768, 1e-5},
    {"mixtral-8x22b", 1000000, 65536, 1e-5},
};

const Series& SeriesOf(std::string_view name) {
  const Series* best = &kSeries[0];
  for (const Series& series : kSeries)
    if (name.starts_with(series.prefix) && series.prefix.size() > best->prefix.size()) best = &series;
  return *best;
}

const char* FamilyName(const LlmShape& shape) {
  if (shape.experts > 0)
    return shape.shared_intermediate > 0 ? "qwen2_moe" : shape.qk_norm ? "qwen3_moe" : "mixtral";
  if (shape.qk_norm) return "qwen3";
  if (shape.qkv_bias) return "qwen2";
  return shape.name.starts_with("mistral") ? "mistral" : "llama";
}

struct HfNames {
  std::string_view family, architecture;
};

constexpr HfNames kArchitectures[] = {
    {"llama", "LlamaForCausalLM"},        {"mistral", "MistralForCausalLM"},
    {"mixtral", "MixtralForCausalLM"},    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},        {"qwen2_moe", "Qwen2MoeForCausalLM"},
    {"qwen3_moe", "Qwen3MoeForCausalLM"},
};

std::string_view ArchitectureOf(std::string_view family) {
  for (const HfNames& names : kArchitectures)
    if (names.family == family) return names.architecture;
  return "?";
}

// The published mixtures of the Qwen kind have dense layers as wide as the experts that one token uses.
int64_t DenseIntermediate(const LlmShape& shape, std::string_view family) {
  const bool qwen_moe = shape.experts > 0 && family != "mixtral";
  return qwen_moe ? shape.intermediate * shape.experts_per_token : shape.intermediate;
}

// The config.json of a model like Llama, Mistral or Qwen up to 3.
nlohmann::ordered_json PlainConfig(const LlmShape& s) {
  const Series& series = SeriesOf(s.name);
  const std::string_view family = FamilyName(s);
  nlohmann::ordered_json json;
  json["architectures"] = nlohmann::ordered_json::array({ArchitectureOf(family)});
  json["model_type"] = family;
  json["hidden_size"] = s.hidden;
  json["intermediate_size"] = DenseIntermediate(s, family);
  json["num_hidden_layers"] = s.layers;
  json["num_attention_heads"] = s.heads;
  json["num_key_value_heads"] = s.kv_heads;
  json["head_dim"] = s.head_dim;
  json["vocab_size"] = s.vocab;
  json["max_position_embeddings"] = series.positions;
  json["rms_norm_eps"] = series.norm_eps;
  json["hidden_act"] = "silu";
  json["attention_dropout"] = 0.0;
  json["initializer_range"] = 0.02;
  json["rope_theta"] = series.theta;
  json["rope_scaling"] = nullptr;
  if (series.llama3_factor > 0)
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", series.llama3_factor},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  json["tie_word_embeddings"] = s.tied_embeddings;
  json["use_cache"] = true;
  if (family == "llama" || family == "qwen3" || family == "qwen3_moe") json["attention_bias"] = false;
  if (family == "llama") json["mlp_bias"] = false;
  if (family == "mistral" || family == "mixtral") {
    json["sliding_window"] = nullptr;
    if (series.sliding_window > 0) json["sliding_window"] = series.sliding_window;
  }
  if (family.starts_with("qwen")) json["use_sliding_window"] = false;
  if (s.experts > 0) {
    json["num_experts_per_tok"] = s.experts_per_token;
    json["output_router_logits"] = false;
    if (family == "mixtral") {
      json["num_local_experts"] = s.experts;
    } else {
      json["num_experts"] = s.experts;
      json["moe_intermediate_size"] = s.intermediate;
      json["norm_topk_prob"] = family == "qwen3_moe";
      json["decoder_sparse_step"] = 1;
      json["mlp_only_layers"] = nlohmann::ordered_json::array();
      if (s.shared_intermediate > 0) json["shared_expert_intermediate_size"] = s.shared_intermediate;
    }
  }
  return json;
}

std::string_view TorchName(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
}

bool IsOfExperts(const FileTensor& tensor) {
  return tensor.parts[0].key.find(".experts.") != std::string::npos;
}

// Of a matrix. GGUF's MXFP4 is for experts; files of such models have the rest in q8_0.
DType MatrixType(const SynthModel& model, const FileTensor& tensor) {
  const bool mixed = model.weights == DType::kMxfp4 && model.config.moe.experts > 0 && !IsOfExperts(tensor);
  const DType type = mixed ? DType::kQ8_0 : model.weights;
  const int64_t cols = tensor.shape[tensor.shape.rank() - 1];
  if (tensor.role != WeightRole::kHeads || cols % Info(type).block == 0) return type;
  return cols % Info(DType::kQ8_0).block == 0 ? DType::kQ8_0 : DType::kF16;  // as llama.cpp falls back
}

Status CheckBlocks(const SynthModel& model) {
  if (Info(model.weights).block == 1) return {};
  CELER_ASSIGN(const std::vector<SynthTensor> tensors, SynthTensors(model, SynthContainer::kGguf));
  for (const SynthTensor& tensor : tensors) {
    const int64_t cols = tensor.spec.shape[tensor.spec.shape.rank() - 1];
    if (const int block = Info(tensor.spec.dtype).block; cols % block != 0)
      return Error::Invalid(
          model.name, ": '", tensor.spec.name, "' has rows of ", cols, " elements, and ",
          Name(tensor.spec.dtype), " needs a multiple of ", block,
          block > 32 && cols % 32 == 0 ? "; take q4_0, q5_0 or q8_0" : "; take f16 or bf16");
  }
  return {};
}

}  // namespace

Result<SynthModel> MakeSynthModel(const std::string& name, const nlohmann::ordered_json& given, DType weights,
                                  uint64_t seed) {
  SynthModel model;
  model.name = name;
  model.json = TextConfigOf(given);
  model.weights = weights;
  model.seed = seed;
  nlohmann::ordered_json& json = model.json;
  json.erase("quantization_config");
  json.erase("dtype");
  json["torch_dtype"] = TorchName(weights);
  json["celer_synthetic"] = {{"note", "synthetic: random weights"}, {"preset", name}, {"seed", seed}};
  CELER_ASSIGN(model.config, ConfigFromHf(nlohmann::json(json), name));
  model.family = FindFamily(model.config.family);
  const int64_t vocab = model.config.vocab;
  if (vocab < kSynthMinVocab)
    return Error::Invalid(name, ": a vocabulary of ", vocab, " tokens does not hold the ", kSynthMinVocab - 1,
                          " bytes and an end token; give ", kSynthMinVocab, " or more");
  json["bos_token_id"] = json["eos_token_id"] = vocab - 1;
  json.erase("pad_token_id");
  CELER_RETURN_IF_ERROR(CheckBlocks(model));
  return model;
}

Result<SynthModel> MakeSynthModel(const LlmShape& shape, DType weights, uint64_t seed) {
  CELER_RETURN_IF_ERROR(Validate(shape));
  const bool mixed = shape.qk_norm && shape.shared_intermediate > 0;
  if (!shape.kinds.empty() || !shape.gated_mlp || mixed)
    return Error::Unsupported(shape.name,
                              ": its layers are not all like those of Llama, Mistral and Qwen up to 3, which "
                              "is what a shape alone can say; take the name of a model or its config.json");
  if (shape.head_dim % 2 != 0)
    return Error::Invalid(shape.name, ": heads of ", shape.head_dim,
                          " elements cannot be rotated; give an even number");
  return MakeSynthModel(shape.name, PlainConfig(shape), weights, seed);
}

Result<std::vector<SynthTensor>> SynthTensors(const SynthModel& model, SynthContainer container) {
  const bool gguf = container == SynthContainer::kGguf;
  CELER_ASSIGN(std::vector<FileTensor> list,
               FileTensors(model.config, gguf ? ModelContainer::kGguf : ModelContainer::kHf));
  const bool interleaves = gguf && GgufInterleaves(model.config);
  std::vector<SynthTensor> tensors;
  for (FileTensor& tensor : list) {
    const bool floats = gguf && (tensor.role == WeightRole::kVector || tensor.role == WeightRole::kRouter);
    SynthTensor out{.spec = {tensor.name, floats ? DType::kF32 : MatrixType(model, tensor), tensor.shape},
                    .in_file = std::move(tensor)};
    const std::string pattern = PatternOf(out.in_file.parts[0].key).pattern;
    const bool turned = pattern == kHfNames.q || pattern == kHfNames.k || pattern == kHfNames.q_bias ||
                        pattern == kHfNames.k_bias;
    if (interleaves && turned) out.interleave_head = model.config.head_dim;
    tensors.push_back(std::move(out));
  }
  return tensors;
}

namespace {

// Names for one number; the first one that a file has is its own.
void SetNumber(nlohmann::ordered_json* json, std::initializer_list<const char*> names, int64_t value) {
  if (value <= 0) return;
  bool found = false;
  for (const char* name : names)
    if (json->contains(name)) {
      (*json)[name] = value;
      found = true;
    }
  if (!found) (*json)[*names.begin()] = value;
}

}  // namespace

Result<nlohmann::ordered_json> ResizeConfig(const std::string& name, nlohmann::ordered_json given,
                                            const SynthSizes& sizes) {
  nlohmann::ordered_json json = TextConfigOf(given);
  CELER_ASSIGN(const DecoderConfig config, ConfigFromHf(nlohmann::json(json), name));
  if ((sizes.experts > 0 || sizes.experts_per_token > 0) && config.moe.experts == 0)
    return Error::Invalid("--experts: ", name, " is no mixture of experts; take a model that is one");
  if (sizes.layers > 0) {
    const auto before = static_cast<size_t>(config.layers), after = static_cast<size_t>(sizes.layers);
    for (auto& [key, value] : json.items()) {
      if (value.is_string() && value.get<std::string>().size() == before &&
          key == "hybrid_override_pattern") {
        std::string pattern = value.get<std::string>();
        for (size_t i = before; i < after; ++i) pattern += pattern[i - before];
        value = pattern.substr(0, after);
      } else if (value.is_array() && value.size() == before) {
        nlohmann::ordered_json resized = nlohmann::ordered_json::array();
        for (size_t i = 0; i < after; ++i) resized.push_back(value[i % before]);
        value = std::move(resized);
      }
    }
    SetNumber(&json, {"num_hidden_layers", "n_layer", "n_layers"}, sizes.layers);
  }
  SetNumber(&json, {"hidden_size", "n_embd", "n_embed", "d_model"}, sizes.hidden);
  if (sizes.hidden > 0 && json.contains("word_embed_proj_dim")) json["word_embed_proj_dim"] = sizes.hidden;
  if (config.moe.experts > 0 && sizes.intermediate > 0 && json.contains("moe_intermediate_size"))
    json["moe_intermediate_size"] = sizes.intermediate;
  SetNumber(&json, {"intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"}, sizes.intermediate);
  SetNumber(&json, {"vocab_size"}, sizes.vocab);
  if (sizes.vocab > 0 && json.contains("vocab_size_per_layer_input"))
    json["vocab_size_per_layer_input"] = sizes.vocab;
  SetNumber(&json, {"num_attention_heads", "n_head", "n_heads"}, sizes.heads);
  SetNumber(&json, {"num_key_value_heads", "num_kv_heads"}, sizes.kv_heads);
  SetNumber(&json, {"head_dim"}, sizes.head_dim);
  SetNumber(&json, {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"},
            sizes.experts);
  SetNumber(&json, {"num_experts_per_tok", "moe_k", "top_k_experts", "moe_topk"}, sizes.experts_per_token);
  return json;
}

}  // namespace celer
