// A synthetic model as a folder in the form of Hugging Face.
#include <fmt/format.h>

#include <system_error>
#include <unordered_map>

#include "io/file/atomic_file.h"
#include "io/file/disk_space.h"
#include "io/file/tensor_stream.h"
#include "io/safetensors/safetensors.h"
#include "models/synth/synth.h"
#include "models/synth/synth_tokenizer.h"
#include "models/synth/synth_values.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

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

std::string_view TorchName(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
}

struct Shard {
  std::string file;
  std::vector<TensorSpec> tensors;
  int64_t bytes = 0;
};

std::vector<Shard> Split(const std::vector<SynthTensor>& tensors, int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  for (const SynthTensor& tensor : tensors) {
    const int64_t bytes = TensorBytes(tensor.spec).value();
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > shard_bytes) shards.emplace_back();
    shards.back().tensors.push_back(tensor.spec);
    shards.back().bytes += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

template <class Json>
Status WriteJson(const fs::path& path, const Json& json, int indent) {
  return WriteWholeFile(path, json.dump(indent) + "\n");
}

Status WriteIndex(const fs::path& path, const std::vector<Shard>& shards) {
  nlohmann::json map = nlohmann::json::object();
  int64_t total = 0;
  for (const Shard& shard : shards) {
    total += shard.bytes;
    for (const TensorSpec& tensor : shard.tensors) map[tensor.name] = shard.file;
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}, {"celer.synthetic", "true"}}},
                                {"weight_map", std::move(map)}};
  return WriteJson(path, index, 2);
}

}  // namespace

nlohmann::ordered_json SynthConfigJson(const SynthModel& model) {
  const LlmShape& s = model.shape;
  const std::string_view family = model.family->name;
  nlohmann::ordered_json json;
  json["architectures"] = nlohmann::ordered_json::array({ArchitectureOf(family)});
  json["model_type"] = model.family->model_type;
  json["celer_synthetic"] = {{"note", "synthetic: random weights"}, {"preset", s.name}, {"seed", model.seed}};
  json["hidden_size"] = s.hidden;
  json["intermediate_size"] = model.dense_intermediate();
  json["num_hidden_layers"] = s.layers;
  json["num_attention_heads"] = s.heads;
  json["num_key_value_heads"] = s.kv_heads;
  json["head_dim"] = s.head_dim;
  json["vocab_size"] = s.vocab;
  json["max_position_embeddings"] = model.positions;
  json["rms_norm_eps"] = model.norm_eps;
  json["hidden_act"] = "silu";
  json["attention_dropout"] = 0.0;
  json["initializer_range"] = 0.02;
  json["rope_theta"] = model.rope.theta;
  json["rope_scaling"] = nullptr;
  if (model.rope.scaling == RopeConfig::Scaling::kLlama3)
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", model.rope.factor},
        {"low_freq_factor", model.rope.low_freq_factor},
        {"high_freq_factor", model.rope.high_freq_factor},
        {"original_max_position_embeddings", static_cast<int64_t>(model.rope.original_positions)}};
  json["tie_word_embeddings"] = s.tied_embeddings;
  json["bos_token_id"] = s.vocab - 1;
  json["eos_token_id"] = s.vocab - 1;
  json["torch_dtype"] = TorchName(model.weights);
  json["use_cache"] = true;
  if (family == "llama" || family == "qwen3" || family == "qwen3_moe") json["attention_bias"] = false;
  if (family == "llama") json["mlp_bias"] = false;
  if (family == "mistral" || family == "mixtral") {
    json["sliding_window"] = nullptr;
    if (model.sliding_window > 0) json["sliding_window"] = model.sliding_window;
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

Status WriteSynthHf(const SynthModel& model, const fs::path& folder, ThreadPool& pool,
                    const SynthProgress& progress, int64_t shard_bytes) {
  if (model.weights != DType::kF32 && model.weights != DType::kF16 && model.weights != DType::kBf16)
    return Error::Invalid(
        folder.string(), ": ", Name(model.weights),
        " exists in GGUF files only; give an output that ends with .gguf, or f32, f16 or bf16");
  const std::vector<SynthTensor> tensors = SynthTensors(model, SynthContainer::kHf);
  std::unordered_map<std::string, const SynthTensor*> by_name;
  for (const SynthTensor& tensor : tensors) by_name[tensor.spec.name] = &tensor;
  const std::vector<Shard> shards = Split(tensors, shard_bytes);
  int64_t total = 0;
  for (const Shard& shard : shards) total += shard.bytes;

  constexpr int64_t kTextFiles = int64_t{32} << 20;  // tokenizer.json, headers and the index, generously
  CELER_RETURN_IF_ERROR(CheckFreeSpace(folder, total + kTextFiles, kNoSpaceRemedy));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Error::Io(folder.string(), ": cannot be made: ", error.message());

  const std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                       {"description", "synthetic: random weights"},
                                                       {"celer.synthetic", "true"},
                                                       {"celer.synthetic.preset", model.shape.name},
                                                       {"celer.synthetic.seed", std::to_string(model.seed)}};
  SynthFiller filler(model, pool, progress, total);
  for (const Shard& shard : shards)
    CELER_RETURN_IF_ERROR(WriteSafetensors(folder / shard.file, shard.tensors, metadata,
                                           [&](const TensorSpec& spec, const TensorSink& sink) {
                                             return filler.Fill(*by_name.at(spec.name), sink);
                                           }));
  if (shards.size() > 1) CELER_RETURN_IF_ERROR(WriteIndex(folder / "model.safetensors.index.json", shards));
  CELER_RETURN_IF_ERROR(WriteJson(folder / "tokenizer.json", SynthTokenizerJson(model.shape.vocab), -1));
  CELER_RETURN_IF_ERROR(WriteJson(folder / "tokenizer_config.json", SynthTokenizerConfigJson(), 2));
  // Last: without it the folder is not taken for a model, so a half-made one is not either.
  return WriteJson(folder / "config.json", SynthConfigJson(model), 2);
}

}  // namespace celer
