#include "cli/limits/model.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/log.h"
#include "base/result.h"
#include "io/json/json.h"
#include "models/config/family.h"

namespace celer::cli {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;  // real ones have a few kilobytes

// Reads fields and remembers the first that is wrong, so that a shape is filled in one go.
class Fields {
 public:
  Fields(const nlohmann::json& object, const std::string& where) : object_(object), where_(where) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

  int64_t Int(const char* key, std::optional<int64_t> fallback = std::nullopt) {
    if (!Has(key)) {
      if (!fallback)
        Fail(Error::Corrupt(where_, ": '", key, "' is missing; is this the config of a Llama-like decoder?"));
      return fallback.value_or(1);
    }
    const nlohmann::json& value = object_[key];
    if (!value.is_number_integer()) {
      Fail(Error::Corrupt(where_, ": '", key, "' is ", value.dump().substr(0, 40),
                          ", but must be a whole number"));
      return 1;
    }
    // A number beyond int64 is stored as unsigned.
    if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX)) {
      Fail(Error::Corrupt(where_, ": '", key, "' is ", value.dump(), ", which is absurdly large"));
      return 1;
    }
    return value.get<int64_t>();
  }

  bool Bool(const char* key, bool fallback) {
    if (!Has(key)) return fallback;
    if (!object_[key].is_boolean()) {
      Fail(Error::Corrupt(where_, ": '", key, "' is ", object_[key].dump().substr(0, 40),
                          ", but must be true or false"));
      return fallback;
    }
    return object_[key].get<bool>();
  }

  std::string String(const char* key) {
    return Has(key) && object_[key].is_string() ? object_[key].get<std::string>() : "";
  }

  const std::optional<Error>& error() const { return error_; }
  void Fail(Error error) {
    if (!error_) error_ = std::move(error);
  }

 private:
  const nlohmann::json& object_;
  const std::string& where_;
  std::optional<Error> error_;
};

bool IsOneOf(const std::string& value, std::initializer_list<const char*> list) {
  return std::any_of(list.begin(), list.end(), [&](const char* item) { return value == item; });
}

// Decoders that do not run here, whose every layer is attention over all tokens (or a window of them) with grouped
// heads, and a gated MLP or the same number of experts. State-space, linear and latent attention, encoders and cross
// attention are none of these.
constexpr const char* kModelled[] = {"cohere",        "cohere2", "ernie4_5",  "gemma",           "gemma2",
                                     "gemma3_text",   "glm",     "glm4",      "gpt_oss",         "granite",
                                     "granitemoe",    "helium",  "llama",     "ministral",       "mistral",
                                     "mixtral",       "olmo",    "olmo2",     "olmo3",           "olmoe",
                                     "phi3",          "phimoe",  "qwen2",     "qwen2_5_vl_text", "qwen2_moe",
                                     "qwen2_vl_text", "qwen3",   "qwen3_moe", "qwen3_vl_text",   "seed_oss",
                                     "smollm3",       "stablelm"};

// What the formulas do not model is refused rather than answered wrongly.
void RefuseUnmodelled(Fields& fields, const std::string& where, const std::string& type) {
  if (IsOneOf(type, {"gpt2", "gpt_neox", "gptj", "gpt_bigcode", "phi", "starcoder2", "falcon", "opt", "bloom",
                     "mpt"}))
    fields.Fail(
        Error::Unsupported(where, ": model_type '", type, "' has no gated MLP, which the formulas assume"));
  if (fields.Has("kv_lora_rank"))
    fields.Fail(
        Error::Unsupported(where, ": 'kv_lora_rank' means latent attention, whose KV cache is not modelled"));
  if (fields.Int("first_k_dense_replace", 0) > 0 || fields.Int("decoder_sparse_step", 1) > 1)
    fields.Fail(Error::Unsupported(where, ": layers with and without experts in one model are not modelled"));
  if (type.empty() || std::find(std::begin(kModelled), std::end(kModelled), type) != std::end(kModelled))
    return;
  std::string known;
  for (const char* name : kModelled) known += (known.empty() ? "" : ", ") + std::string(name);
  fields.Fail(Error::Unsupported(where, ": model_type '", type,
                                 "' is not one that the formulas are known to hold for; they are for ",
                                 known));
}

// Figures that are right for most of the model and too high for the rest.
void WarnSlidingWindow(const nlohmann::json& object, const std::string& where) {
  const auto window = object.find("sliding_window");
  if (window == object.end() || !window->is_number_integer()) return;
  if (const auto used = object.find("use_sliding_window"); used != object.end() && *used == false) return;
  log::WarningOnce(
      "{}: 'sliding_window' is {}: layers that look back no further keep and read less KV than these figures "
      "say",
      where, window->dump());
}

}  // namespace

Result<LlmShape> ParseConfigShape(std::string_view text, const std::string& where, const std::string& name) {
  CELER_ASSIGN(const nlohmann::json root, ParseJson(text, where));
  if (!root.is_object()) return Error::Corrupt(where, ": must hold a JSON object");
  // Models that also see or hear keep the decoder's shape one level down.
  const bool nested =
      root.contains("text_config") && root["text_config"].is_object() && !root.contains("hidden_size");
  const nlohmann::json& object = nested ? root["text_config"] : root;

  // A family that runs here is known in detail.
  const auto config = ConfigFromHf(root.contains("model_type") ? root : object, where);
  if (config) return ToLlmShape(*config, name);
  if (config.error().code() != Error::Code::kUnsupported && object.contains("model_type"))
    return config.error();
  Fields f(object, where);
  const std::string type = f.String("model_type");
  if (type.empty())
    log::WarningOnce("{}: has no 'model_type'; the figures are those of a decoder like Llama's", where);
  RefuseUnmodelled(f, where, type);
  WarnSlidingWindow(object, where);
  LlmShape s;
  s.name = name;
  s.layers = f.Int("num_hidden_layers");
  s.hidden = f.Int("hidden_size");
  s.vocab = f.Int("vocab_size");
  s.heads = f.Int("num_attention_heads");
  s.kv_heads = f.Int("num_key_value_heads", s.heads);
  s.head_dim = f.Int("head_dim", s.heads > 0 ? s.hidden / s.heads : 0);
  s.experts = f.Int("num_experts", f.Int("num_local_experts", 0));
  if (s.experts > 0) {
    s.experts_per_token = f.Int("num_experts_per_tok");
    s.intermediate =
        f.Has("moe_intermediate_size") ? f.Int("moe_intermediate_size") : f.Int("intermediate_size");
    s.shared_intermediate = f.Int("shared_expert_intermediate_size", 0);
  } else {
    s.intermediate = f.Int("intermediate_size");
  }
  // Qwen1.5 and Qwen2 have Q, K and V biases without saying so; Qwen3 has normed heads; only Gemma ties
  // silently.
  s.qkv_bias = f.Bool("attention_bias", false) || f.Bool("qkv_bias", IsOneOf(type, {"qwen2", "qwen2_moe"}));
  s.qk_norm = IsOneOf(type, {"qwen3", "qwen3_moe", "gemma3_text"});
  s.tied_embeddings = f.Bool("tie_word_embeddings", type.starts_with("gemma"));
  if (f.error()) return *f.error();
  const Status valid = Validate(s);
  if (!valid) return Error::Corrupt(where, ": ", valid.error().message());
  return s;
}

Result<LlmShape> ShapeFromConfigJson(const std::filesystem::path& path) {
  CELER_ASSIGN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  std::error_code error;
  // A folder says more than "config.json".
  std::filesystem::path named = std::filesystem::absolute(path, error);
  std::string name =
      named.filename() == "config.json" ? named.parent_path().filename().string() : named.stem().string();
  return ParseConfigShape(text, path.string(), name.empty() ? "model" : name);
}

}  // namespace celer::cli
