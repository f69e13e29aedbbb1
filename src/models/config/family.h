// The supported model families: one small file under families/ and one row in family.cc each.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/gguf/gguf.h"
#include "io/json/json.h"
#include "models/config/decoder_config.h"
#include "models/config/tensor_rules.h"

namespace celer {

// How a family names the parts of its experts in Hugging Face files, below "model.layers.N.".
struct ExpertNames {
  const char* router;   // "mlp.gate.weight"
  const char* experts;  // "mlp.experts."
  const char* gate;     // ".gate_proj.weight"
  const char* up;
  const char* down;
  const char* shared;                 // "mlp.shared_expert", or nullptr
  const char* shared_gate;            // "mlp.shared_expert_gate.weight", or nullptr
  const char* choice_bias = nullptr;  // "mlp.gate.e_score_correction_bias"
  const char* router_bias = nullptr;  // "mlp.router.bias"
};

// What the family's class in transformers takes for a key that config.json does not have.
struct HfDefaults {
  int64_t vocab, hidden, intermediate, layers, heads;
  int64_t kv_heads;  // 0: as many as heads
  int64_t head_dim;  // 0: hidden / heads
  int64_t max_positions;
  double norm_eps, rope_theta;
};

struct Family {
  const char* name;        // celer's name
  const char* model_type;  // config.json's "model_type"
  const char* gguf;        // GGUF's general.architecture, words if several; nullptr if it has none of its own
  const char* examples;    // for people
  HfDefaults defaults;
  // What this family adds to the fields that all share. The common fields are filled in already.
  Status (*from_hf)(const JsonFields& json, DecoderConfig* config);
  Status (*from_gguf)(const GgufFile& file, DecoderConfig* config);
  ExpertNames experts;  // of Hugging Face files; unused by dense families
  // Where the tensors of a file are named or arranged in ways of the family's own; nullptr if they are not.
  void (*hf_tensors)(const DecoderConfig& config, TensorRules* rules) = nullptr;
  void (*gguf_tensors)(const DecoderConfig& config, TensorRules* rules) = nullptr;
  bool rope_by_kind = false;    // from_hf reads rope itself, with ReadHfRopeOfKinds()
  bool layer_shapes = false;    // from_hf and from_gguf read the numbers that layers have each for itself
  bool parts_by_layer = false;  // in GGUF, layers have 0 heads or columns of what they lack
};

std::span<const Family> Families();
const Family* FindFamily(std::string_view name);
// Whose architecture GGUF files of a family have: its own, or that of a family whose layers include its. nullptr if no
// such files are read.
const Family* GgufFamily(const Family& family);
std::string SupportedFamilies();  // "llama (Llama 2/3, ...), qwen2 (...)"

// A number that the class in transformers has a default for. null is not the same as missing: it gives
// `if_null`, or an error when there is no such value.
Result<int64_t> HfInt(const JsonFields& json, const char* key, int64_t min, int64_t max, int64_t if_missing,
                      std::optional<int64_t> if_null = std::nullopt);

// By the name in "hidden_act".
Status ReadActivation(const std::string& name, const std::string& path, DecoderConfig* config);

// Whether it is a model of text and something else, whose text model is described in "text_config".
bool IsNested(const nlohmann::json& json);
// The text model's part of such a config.json as one of its own; any other one as it is.
nlohmann::ordered_json TextConfigOf(const nlohmann::ordered_json& json);
Result<DecoderConfig> ConfigFromHf(const nlohmann::json& json, const std::string& path);
Result<DecoderConfig> ConfigFromGguf(const GgufFile& file, const std::string& path);

}  // namespace celer
