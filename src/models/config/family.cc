#include "models/config/family.h"

#include <algorithm>

#include "base/suggest.h"
#include "models/config/config_keys.h"
#include "models/config/families/families.h"
#include "models/config/rope_config.h"
#include "models/config/usual_keys.h"
#include "models/load/gguf_reader.h"
#include "weights/published/published_source.h"

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
// As GraniteMoeHfTensors() names the parts of its stacks.
constexpr ExpertNames kGraniteExperts = {"block_sparse_moe.router.layer.weight",
                                         "block_sparse_moe.experts.",
                                         ".gate.weight",
                                         ".up.weight",
                                         ".down.weight",
                                         "shared_mlp",
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

constexpr ExpertNames kGptOssExperts = {
    .router = "mlp.router.weight",
    .experts = "mlp.experts.",
    .gate = ".gate_proj.weight",
    .up = ".up_proj.weight",
    .down = ".down_proj.weight",
    .shared = nullptr,
    .shared_gate = nullptr,
    .router_bias = "mlp.router.bias",
};
// Of DeepSeek V3 and those that took it from there.
constexpr ExpertNames kDeepSeekExperts = {
    .router = "mlp.gate.weight",
    .experts = "mlp.experts.",
    .gate = ".gate_proj.weight",
    .up = ".up_proj.weight",
    .down = ".down_proj.weight",
    .shared = "mlp.shared_experts",
    .shared_gate = nullptr,
    .choice_bias = "mlp.gate.e_score_correction_bias",
};
constexpr ExpertNames kErnieExperts = [] {
  ExpertNames names = kDeepSeekExperts;
  names.choice_bias = "mlp.moe_statics.e_score_correction_bias";
  return names;
}();
constexpr ExpertNames kMiniMaxExperts = [] {
  ExpertNames names = kMixtralExperts;
  names.choice_bias = "block_sparse_moe.e_score_correction_bias";
  return names;
}();
constexpr ExpertNames kHunyuanExperts = [] {
  ExpertNames names = kQwen3Experts;
  names.router = "mlp.gate.wg.weight";
  names.shared = "mlp.shared_mlp";
  return names;
}();

// In the order of HfDefaults.
constexpr Family kFamilies[] = {
    {"llama",
     "llama",
     "llama",
     "Llama 2/3/3.1/3.2, TinyLlama, SmolLM2",
     {32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4},
     families::LlamaFromHf,
     families::LlamaFromGguf,
     {}},
    {"mistral",
     "mistral",
     nullptr,
     "Mistral 7B",
     {32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-6, 1e4},
     families::MistralFromHf,
     nullptr,
     {}},
    {"mixtral",
     "mixtral",
     nullptr,
     "Mixtral 8x7B",
     {32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-5, 1e6},
     families::MixtralFromHf,
     nullptr,
     kMixtralExperts},
    {"qwen2",
     "qwen2",
     "qwen2",
     "Qwen1.5, Qwen2, Qwen2.5",
     {151936, 4096, 22016, 32, 32, 32, 0, 32768, 1e-6, 1e4},
     families::Qwen2FromHf,
     families::Qwen2FromGguf,
     {}},
    {"qwen3",
     "qwen3",
     "qwen3",
     "Qwen3",
     {151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6, 1e4},
     families::Qwen3FromHf,
     families::Qwen3FromGguf,
     {}},
    {"qwen2_moe",
     "qwen2_moe",
     "qwen2moe",
     "Qwen1.5-MoE, Qwen2-57B-A14B",
     {151936, 2048, 5632, 24, 16, 16, 0, 32768, 1e-6, 1e4},
     families::Qwen2MoeFromHf,
     families::Qwen2MoeFromGguf,
     kQwen2Experts},
    {"qwen3_moe",
     "qwen3_moe",
     "qwen3moe",
     "Qwen3-30B-A3B",
     {151936, 2048, 6144, 24, 32, 4, 0, 32768, 1e-6, 1e4},
     families::Qwen3MoeFromHf,
     families::Qwen3MoeFromGguf,
     kQwen3Experts},
    {"gpt_oss",
     "gpt_oss",
     "gpt-oss",
     "gpt-oss-20b, gpt-oss-120b",
     {201088, 2880, 2880, 36, 64, 8, 64, 131072, 1e-5, 1.5e5},
     families::GptOssFromHf,
     families::GptOssFromGguf,
     kGptOssExperts,
     families::GptOssHfTensors,
     families::GptOssGgufTensors},
    {"glm4_moe",
     "glm4_moe",
     "glm4moe",
     "GLM-4.5, GLM-4.5-Air, GLM-4.6",
     {151552, 4096, 10944, 46, 96, 8, 0, 131072, 1e-5, 1e4},
     families::Glm4MoeFromHf,
     families::Glm4MoeFromGguf,
     kDeepSeekExperts,
     families::Glm4MoeHfTensors,
     families::Glm4MoeGgufTensors},
    {"ernie4_5_moe",
     "ernie4_5_moe",
     "ernie4_5-moe",
     "ERNIE 4.5 21B-A3B, 300B-A47B",
     {103424, 2560, 12288, 28, 20, 4, 0, 131072, 1e-5, 5e5},
     families::Ernie45MoeFromHf,
     families::Ernie45MoeFromGguf,
     kErnieExperts,
     families::Ernie45MoeHfTensors},
    {"minimax_m2",
     "minimax_m2",
     "minimax-m2",
     "MiniMax M2",
     {200064, 3072, 1536, 62, 48, 8, 128, 196608, 1e-6, 5e6},
     families::MiniMaxM2FromHf,
     families::MiniMaxM2FromGguf,
     kMiniMaxExperts},
    {"hunyuan_v1_moe",
     "hunyuan_v1_moe",
     "hunyuan-moe",
     "Hunyuan-A13B",
     {290943, 4096, 11008, 32, 32, 0, 0, 2048, 1e-5, 1e4},
     families::HunyuanV1MoeFromHf,
     families::HunyuanV1MoeFromGguf,
     kHunyuanExperts,
     families::HunyuanV1MoeHfTensors},
    {"ministral3",
     "ministral3",
     "mistral3",
     "Ministral 3",
     {131072, 4096, 14336, 34, 32, 8, 128, 262144, 1e-5, 1e6},
     families::Ministral3FromHf,
     families::Ministral3FromGguf,
     {}},
    {"granite",
     "granite",
     "granite",
     "Granite 3",
     {32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4},
     families::GraniteFromHf,
     families::GraniteFromGguf,
     {}},
    {"granitemoe",
     "granitemoe",
     "granitemoe",
     "Granite 3 MoE",
     {32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4},
     families::GraniteMoeFromHf,
     families::GraniteFromGguf,
     kGraniteExperts,
     families::GraniteMoeHfTensors},
    {"granitemoeshared",
     "granitemoeshared",
     nullptr,
     "Granite MoE with a shared expert",
     {32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4},
     families::GraniteMoeSharedFromHf,
     nullptr,
     kGraniteExperts,
     families::GraniteMoeHfTensors},
    {"minicpm",
     "minicpm",
     "minicpm",
     "MiniCPM 1, 2 and 4",
     {32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4},
     families::MiniCpmFromHf,
     families::MiniCpmFromGguf,
     {}},
    {"phi3",
     "phi3",
     "phi3",
     "Phi-3, Phi-3.5-mini, Phi-4",
     {32064, 3072, 8192, 32, 32, 0, 0, 4096, 1e-5, 1e4},
     families::Phi3FromHf,
     families::Phi3FromGguf,
     {},
     families::Phi3HfTensors,
     families::Phi3GgufTensors},
    {"glm",
     "glm",
     "chatglm",
     "GLM-4-9B",
     {151552, 4096, 13696, 40, 32, 2, 128, 131072, 1.5625e-7, 1e4},
     families::GlmFromHf,
     families::GlmFromGguf,
     {},
     families::GlmHfTensors,
     families::GlmGgufTensors},
    {"ernie4_5",
     "ernie4_5",
     "ernie4_5",
     "ERNIE 4.5 0.3B",
     {103424, 1024, 3072, 18, 16, 2, 128, 131072, 1e-5, 5e5},
     families::ErnieFromHf,
     families::ErnieFromGguf,
     {}},
    {"smollm3",
     "smollm3",
     "smollm3",
     "SmolLM3",
     {128256, 2048, 11008, 36, 16, 4, 0, 32768, 1e-6, 2e6},
     families::SmolLm3FromHf,
     families::SmolLm3FromGguf,
     {}},
    {"gemma",
     "gemma",
     "gemma",
     "Gemma 1",
     {256000, 3072, 24576, 28, 16, 16, 256, 8192, 1e-6, 1e4},
     families::GemmaFromHf,
     families::GemmaFromGguf,
     {},
     families::GemmaHfTensors},
    {"gemma2",
     "gemma2",
     "gemma2",
     "Gemma 2",
     {256000, 2304, 9216, 26, 8, 4, 256, 8192, 1e-6, 1e4},
     families::Gemma2FromHf,
     families::Gemma2FromGguf,
     {},
     families::Gemma2HfTensors},
    {"gemma3",
     "gemma3_text",
     "gemma3",
     "Gemma 3",
     {262208, 2304, 9216, 26, 8, 4, 256, 131072, 1e-6, 1e6},
     families::Gemma3FromHf,
     families::Gemma3FromGguf,
     {},
     families::Gemma2HfTensors,
     nullptr,
     true},
    {"olmo2",
     "olmo2",
     "olmo2",
     "OLMo 2",
     {50304, 4096, 11008, 32, 32, 0, 0, 2048, 1e-5, 1e4},
     families::Olmo2FromHf,
     families::Olmo2FromGguf,
     {},
     families::PostNormHfTensors},
    {"olmo3",
     "olmo3",
     nullptr,
     "OLMo 3",
     {50304, 4096, 11008, 32, 32, 0, 0, 2048, 1e-5, 5e5},
     families::Olmo3FromHf,
     nullptr,
     {},
     families::PostNormHfTensors,
     nullptr,
     true},
    {"olmoe",
     "olmoe",
     "olmoe",
     "OLMoE",
     {50304, 2048, 2048, 16, 16, 0, 0, 4096, 1e-5, 1e4},
     families::OlmoeFromHf,
     families::OlmoeFromGguf,
     kQwen3Experts},
    {"exaone4",
     "exaone4",
     "exaone4",
     "EXAONE 4.0",
     {102400, 4096, 16384, 32, 32, 32, 0, 2048, 1e-5, 1e4},
     families::Exaone4FromHf,
     families::Exaone4FromGguf,
     {},
     families::PostNormHfTensors},
    {"hunyuan_v1_dense",
     "hunyuan_v1_dense",
     "hunyuan-dense",
     "Hunyuan 0.5B/1.8B/4B/7B",
     {290943, 4096, 11008, 32, 32, 0, 0, 2048, 1e-5, 1e4},
     families::HunyuanDenseFromHf,
     families::HunyuanDenseFromGguf,
     {},
     families::HunyuanHfTensors},
    {"glm4",
     "glm4",
     "glm4",
     "GLM-4-0414",
     {151552, 4096, 13696, 40, 32, 2, 128, 131072, 1.5625e-7, 1e4},
     families::Glm4FromHf,
     families::Glm4FromGguf,
     {},
     families::Glm4HfTensors,
     families::Glm4GgufTensors},
    {"deepseek_v2",
     "deepseek_v2",
     "deepseek2",
     "DeepSeek-V2, V2-Lite, V2.5; GGUF: V3, R1, Kimi K2, GLM-4.7-Flash, too",
     {102400, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4},
     families::DeepseekV2FromHf,
     families::Deepseek2FromGguf,
     kDeepSeekExperts,
     nullptr,
     families::LatentGgufTensors},
    {"deepseek_v3",
     "deepseek_v3",
     nullptr,
     "DeepSeek-V3, R1",
     {129280, 7168, 18432, 61, 128, 128, 0, 4096, 1e-6, 1e4},
     families::DeepseekV3FromHf,
     nullptr,
     kDeepSeekExperts,
     families::LatentHfTensors},
    {"kimi_k2",
     "kimi_k2",
     nullptr,
     "Kimi K2",
     {129280, 7168, 18432, 61, 128, 128, 0, 4096, 1e-6, 1e4},
     families::DeepseekV3FromHf,
     nullptr,
     kDeepSeekExperts,
     families::LatentHfTensors},
    {"glm4_moe_lite",
     "glm4_moe_lite",
     nullptr,
     "GLM-4.7-Flash",
     {154880, 2048, 10240, 47, 20, 20, 0, 202752, 1e-5, 1e4},
     families::Glm4MoeLiteFromHf,
     nullptr,
     kDeepSeekExperts,
     families::LatentHfTensors},
    {"minicpm3",
     "minicpm3",
     "minicpm3",
     "MiniCPM3",
     {73448, 2560, 6400, 62, 40, 40, 0, 32768, 1e-5, 1e4},
     families::MiniCpm3FromHf,
     families::MiniCpm3FromGguf,
     {}},
    {"opt",
     "opt",
     nullptr,
     "OPT, Galactica",
     {50272, 768, 3072, 12, 12, 0, 0, 2048, 1e-5, 1e4},
     families::OptFromHf,
     nullptr,
     {},
     families::OptHfTensors},
    {"gpt2",
     "gpt2",
     "gpt2",
     "GPT-2",
     {50257, 768, 3072, 12, 12, 0, 0, 1024, 1e-5, 1e4},
     families::Gpt2FromHf,
     families::Gpt2FromGguf,
     {},
     families::Gpt2HfTensors,
     families::FusedQkvGgufTensors},
    {"gpt_neox",
     "gpt_neox",
     "gptneox",
     "GPT-NeoX, Pythia",
     {50432, 6144, 24576, 44, 64, 0, 0, 2048, 1e-5, 1e4},
     families::GptNeoxFromHf,
     families::GptNeoxFromGguf,
     {},
     families::GptNeoxHfTensors,
     families::FusedQkvGgufTensors},
    {"phi",
     "phi",
     "phi2",
     "Phi-1, Phi-1.5, Phi-2",
     {51200, 2048, 8192, 24, 32, 0, 0, 2048, 1e-5, 1e4},
     families::PhiFromHf,
     families::PhiFromGguf,
     {},
     families::PhiHfTensors,
     families::FusedQkvGgufTensors},
    {"starcoder2",
     "starcoder2",
     "starcoder2",
     "StarCoder2",
     {49152, 3072, 12288, 30, 24, 2, 0, 4096, 1e-5, 1e4},
     families::Starcoder2FromHf,
     families::Starcoder2FromGguf,
     {},
     families::Starcoder2HfTensors},
    {"stablelm",
     "stablelm",
     "stablelm",
     "StableLM 3B, StableLM 2",
     {50304, 2560, 6912, 32, 32, 32, 0, 4096, 1e-5, 1e4},
     families::StablelmFromHf,
     families::StablelmFromGguf,
     {},
     families::StablelmHfTensors},
    {"cohere",
     "cohere",
     "command-r",
     "Command R, Command R+, Aya",
     {256000, 8192, 22528, 40, 64, 0, 0, 8192, 1e-5, 5e5},
     families::CohereFromHf,
     families::CohereFromGguf,
     {},
     nullptr},
    {"cohere2",
     "cohere2",
     "cohere2",
     "Command R7B, Command A",
     {256000, 8192, 22528, 40, 64, 0, 0, 8192, 1e-5, 1e4},
     families::Cohere2FromHf,
     families::Cohere2FromGguf,
     {},
     nullptr},
    {"falcon",
     "falcon",
     "falcon",
     "Falcon 7B, 40B, 180B",
     {65024, 4544, 18176, 32, 71, 0, 0, 2048, 1e-5, 1e4},
     families::FalconFromHf,
     families::FalconFromGguf,
     {},
     families::FalconHfTensors,
     families::FalconGgufTensors},
    {"gptj",
     "gptj",
     nullptr,
     "GPT-J",
     {50400, 4096, 16384, 28, 16, 0, 0, 2048, 1e-5, 1e4},
     families::GptjFromHf,
     nullptr,
     {},
     families::GptjHfTensors},
    {"qwen3_next",
     "qwen3_next",
     "qwen3next",
     "Qwen3-Next-80B-A3B",
     {151936, 2048, 5632, 48, 16, 2, 256, 32768, 1e-6, 1e4},
     families::Qwen3NextFromHf,
     families::Qwen3NextFromGguf,
     kQwen2Experts,
     families::Qwen3NextHfTensors,
     families::Qwen3NextGgufTensors},
    {"qwen3_5_text",
     "qwen3_5_text",
     "qwen35",
     "Qwen3.5, Qwen3.6, their text",
     {248320, 4096, 12288, 32, 16, 4, 256, 32768, 1e-6, 1e4},
     families::Qwen35FromHf,
     families::Qwen35FromGguf,
     kQwen2Experts,
     families::Qwen35HfTensors,
     families::Qwen35GgufTensors},
    {"qwen3_5_moe_text",
     "qwen3_5_moe_text",
     "qwen35moe",
     "Qwen3.5-35B-A3B, Qwen3.6-35B-A3B, their text",
     {248320, 2048, 512, 40, 16, 2, 256, 32768, 1e-6, 1e4},
     families::Qwen35MoeFromHf,
     families::Qwen35FromGguf,
     kQwen2Experts,
     families::Qwen35HfTensors,
     families::Qwen35GgufTensors},
};

// "layer_types" of a family whose layers are what its other keys say: it must say the same.
Status CheckLayerTypes(const JsonFields& json, const DecoderConfig& config) {
  if (!json.Has("layer_types") || config.output_gate) return {};
  CELER_ASSIGN(const std::vector<bool> windowed, families::WindowedByType(json, config.layers));
  for (int64_t i = 0; i < config.layers; ++i)
    if (windowed[i] != (config.Window(i) > 0))
      return Error::Unsupported(json.where(), ": 'layer_types' says that layer ", i, " has ",
                                config.Window(i) > 0 ? "full attention" : "a sliding window",
                                ", which models of the type '", config.architecture, "' do not have");
  return {};
}

}  // namespace

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

Result<int64_t> HfInt(const JsonFields& json, const char* key, int64_t min, int64_t max, int64_t if_missing,
                      std::optional<int64_t> if_null) {
  if (!json.json().contains(key)) return if_missing;
  if (json.Has(key)) return json.GetInt(key, min, max);
  if (!if_null) return Error::Corrupt(json.where(), ": '", key, "' is null, expected an integer");
  return *if_null;
}

bool IsNested(const nlohmann::json& json) {
  return json.is_object() && json.contains("text_config") && json["text_config"].is_object();
}

namespace {

// Models of text and images whose text model is one of the families, described in "text_config".
struct Wrapper {
  const char* model_type;
  const char* text_type;  // what transformers takes for a "text_config" without a "model_type"
  bool tied_embeddings;   // likewise for a missing "tie_word_embeddings", which stands outside
};
constexpr Wrapper kWrappers[] = {
    {"mistral3", "mistral", true},
    {"gemma3", "gemma3_text", true},
    {"qwen3_5", "qwen3_5_text", false},
    {"qwen3_5_moe", "qwen3_5_moe_text", false},
};

// The text model's description with what the outer one says of it.
nlohmann::json TextConfig(const nlohmann::json& outer, const Wrapper& wrapper) {
  nlohmann::json text = outer["text_config"];
  if (!text.contains("model_type")) text["model_type"] = wrapper.text_type;
  text["tie_word_embeddings"] = outer.value("tie_word_embeddings", nlohmann::json(wrapper.tied_embeddings));
  // transformers caps the logits of the text model alone, not of the whole.
  if (wrapper.text_type == std::string_view("gemma3_text")) text.erase("final_logit_softcapping");
  const std::string quantized(published::kConfigKey);
  if (outer.contains(quantized)) text[quantized] = outer[quantized];
  return text;
}

Result<DecoderConfig> TextConfigFromHf(const nlohmann::json& json, const std::string& path) {
  CELER_ASSIGN(const JsonFields given, JsonFields::Of(json, path));
  CELER_ASSIGN(const std::string model_type, given.GetString("model_type"));
  const Family* family = nullptr;
  for (const Family& row : kFamilies)
    if (model_type == row.model_type) family = &row;
  if (!family)
    return Error::Unsupported(path, ": architecture '", model_type, "' is not supported; supported are ",
                              SupportedFamilies());

  const nlohmann::json usual = WithUsualKeys(family->name, json);
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(usual, path));
  DecoderConfig config;
  config.family = family->name;
  config.architecture = model_type;
  const HfDefaults& defaults = family->defaults;
  CELER_ASSIGN(config.layers, HfInt(fields, "num_hidden_layers", 1, 4096, defaults.layers));
  CELER_ASSIGN(config.hidden, HfInt(fields, "hidden_size", 1, kAny, defaults.hidden));
  CELER_ASSIGN(config.intermediate, HfInt(fields, "intermediate_size", 1, kAny, defaults.intermediate));
  CELER_ASSIGN(config.heads, HfInt(fields, "num_attention_heads", 1, kAny, defaults.heads));
  CELER_ASSIGN(config.kv_heads,
               HfInt(fields, "num_key_value_heads", 1, kAny,
                     defaults.kv_heads > 0 ? defaults.kv_heads : config.heads, config.heads));
  const int64_t even = std::max<int64_t>(1, config.hidden / config.heads);
  CELER_ASSIGN(config.head_dim,
               HfInt(fields, "head_dim", 1, kAny, defaults.head_dim > 0 ? defaults.head_dim : even,
                     defaults.head_dim > 0 ? std::nullopt : std::optional(even)));
  CELER_ASSIGN(config.vocab, HfInt(fields, "vocab_size", 1, kAny, defaults.vocab));
  CELER_ASSIGN(config.max_positions,
               HfInt(fields, "max_position_embeddings", 1, kAny, defaults.max_positions));
  CELER_ASSIGN(const double eps, fields.GetDouble("rms_norm_eps", defaults.norm_eps));
  config.norm_eps = static_cast<float>(eps);
  CELER_ASSIGN(config.tied_embeddings, fields.GetBool("tie_word_embeddings", false));
  CELER_ASSIGN(const std::string activation, fields.GetString("hidden_act", "silu"));
  CELER_RETURN_IF_ERROR(ReadActivation(activation, path, &config));
  if (!family->rope_by_kind) {
    CELER_RETURN_IF_ERROR(ReadHfRope(fields, defaults.rope_theta, &config));
  }
  CELER_RETURN_IF_ERROR(family->from_hf(fields, &config));
  if (config.sliding_window == 0) config.windowed_layer.clear();
  CELER_RETURN_IF_ERROR(CheckLayerTypes(fields, config));
  CELER_RETURN_IF_ERROR(CheckHfKeys(fields, &config));
  CELER_RETURN_IF_ERROR(Validate(config, path));
  return config;
}

}  // namespace

Result<DecoderConfig> ConfigFromHf(const nlohmann::json& json, const std::string& path) {
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, path));
  CELER_ASSIGN(const std::string model_type, fields.GetString("model_type"));
  for (const Wrapper& wrapper : kWrappers)
    if (model_type == wrapper.model_type && IsNested(json))
      return TextConfigFromHf(TextConfig(json, wrapper), path + ": 'text_config'");
  return TextConfigFromHf(json, path);
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
  CELER_ASSIGN(const int64_t predicting, reader.Int("nextn_predict_layers", 0));
  config.layers -= predicting;  // block_count includes those for multi-token prediction
  CELER_ASSIGN(config.hidden, reader.Int("embedding_length"));
  if (config.layers < 1 || config.layers > 4096)
    return Error::Corrupt(path, ": number of layers is ", config.layers, ", expected 1 to 4096");
  CELER_ASSIGN(config.intermediate, reader.SameInAllLayers("feed_forward_length", config.layers));
  CELER_ASSIGN(config.heads, reader.SameInAllLayers("attention.head_count", config.layers));
  if (config.heads < 1)
    return Error::Corrupt(path, ": ", config.layers, " layers with ", config.heads, " heads");
  config.kv_heads = config.heads;
  if (reader.Has("attention.head_count_kv")) {
    CELER_ASSIGN(config.kv_heads, reader.SameInAllLayers("attention.head_count_kv", config.layers));
  }
  CELER_ASSIGN(config.head_dim, reader.Int("attention.key_length", config.hidden / config.heads));
  CELER_ASSIGN(const int64_t value_dim, reader.Int("attention.value_length", config.hidden / config.heads));
  if (value_dim != config.head_dim && !reader.Has("attention.kv_lora_rank"))
    return Error::Unsupported(path, ": keys of ", config.head_dim, " and values of ", value_dim,
                              " elements; they must be equal");
  CELER_ASSIGN(config.max_positions, reader.Int("context_length"));
  const bool rms =
      reader.Has("attention.layer_norm_rms_epsilon") || !reader.Has("attention.layer_norm_epsilon");
  CELER_ASSIGN(const double eps,
               reader.Float(rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"));
  config.norm_eps = static_cast<float>(eps);

  const TensorRecord* embedding = file.Find("token_embd.weight");
  if (!embedding)
    return Error::Corrupt(path,
                          ": tensor 'token_embd.weight' is missing; does the file hold a vocabulary only?");
  config.vocab = embedding->shape[0];
  config.tied_embeddings = file.Find("output.weight") == nullptr;

  CELER_RETURN_IF_ERROR(ReadGgufRope(reader, &config));
  CELER_ASSIGN(config.sliding_window, reader.Int("attention.sliding_window", 0));
  config.windowed_layer.assign(config.layers, true);
  // Whether there are biases, the tensors say.
  config.qkv_bias = file.Find("blk.0.attn_q.bias") != nullptr;
  config.o_bias = file.Find("blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = file.Find("blk.0.ffn_up.bias") != nullptr;
  config.head_bias = file.Find("output.bias") != nullptr;

  CELER_ASSIGN(config.moe.experts, reader.Int("expert_count", 0));
  if (config.moe.experts > 0) {
    CELER_ASSIGN(config.moe.experts_per_token, reader.Int("expert_used_count"));
    CELER_ASSIGN(config.moe.intermediate, reader.Int("expert_feed_forward_length", config.intermediate));
    for (int64_t i = 0; i < config.layers; ++i)
      config.moe.sparse_layer.push_back(file.Find("blk." + std::to_string(i) + ".ffn_gate_inp.weight") !=
                                        nullptr);
    if (const TensorRecord* shared = file.Find("blk.0.ffn_gate_shexp.weight")) {
      CELER_ASSIGN(config.moe.shared_intermediate,
                   reader.Int("expert_shared_feed_forward_length", shared->shape[0]));
    }
  }
  CELER_RETURN_IF_ERROR(family->from_gguf(file, &config));
  CELER_RETURN_IF_ERROR(CheckGgufKeys(reader, &config));
  CELER_RETURN_IF_ERROR(Validate(config, path));
  return config;
}

}  // namespace celer
