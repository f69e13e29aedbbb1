#include "models/lora/peft_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "io/file/printable.h"
#include "io/json/json.h"
#include "models/lora/lora_limits.h"

namespace celer {
namespace {

// Fields that say how an adapter was trained, or what its tensors show anyway.
constexpr std::string_view kOfTraining[] = {
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_bias",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "modules_to_save",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "target_parameters",
    "task_type",
};
constexpr std::string_view kRead[] = {
    "alpha_pattern",     "ensure_weight_tying",
    "init_lora_weights", "lora_alpha",
    "peft_type",         "r",
    "rank_pattern",      "use_dora",
    "use_rslora",
};

bool IsEmpty(const nlohmann::json& value) {
  return value.is_null() || value == false || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

Status CheckFields(const nlohmann::json& json, const std::string& path) {
  for (const auto& [key, value] : json.items()) {
    const auto is_key = [&](std::string_view known) { return key == known; };
    if (std::any_of(std::begin(kOfTraining), std::end(kOfTraining), is_key)) continue;
    if (std::any_of(std::begin(kRead), std::end(kRead), is_key)) continue;
    if (!IsEmpty(value))
      return Error::Unsupported(path, ": '", Printable(key, 60), "' is ", Printable(JsonText(value), 80),
                                ", which changes what the adapter does and is not implemented");
  }
  return {};
}

// Some ways to begin a training change the model's own weights, which then differ from those in its file.
Status CheckInitialization(const nlohmann::json& json, const std::string& path) {
  const auto found = json.find("init_lora_weights");
  if (found == json.end() || found->is_boolean() || found->is_null()) return {};
  for (const char* harmless : {"gaussian", "eva", "orthogonal"})
    if (*found == harmless) return {};
  return Error::Unsupported(
      path, ": 'init_lora_weights' is ", Printable(JsonText(*found), 60),
      ", which changes the model's own weights; save the adapter with "
      "path_initial_model_for_weight_conversion, which makes it one for the model as it was");
}

// As PEFT matches: a module's name, or its end from a dot on.
Result<std::regex> PatternRegex(const std::string& key, const std::string& path) {
  constexpr size_t kMost = 256;
  if (key.size() > kMost)
    return Error::Invalid(path, ": a pattern of ", key.size(), " characters; at most ", kMost, " are read");
  const std::string text = "(.*\\.)?(" + key + ")";
  try {
    // Without backtracking, whose time a hostile pattern can make endless.
    return std::regex(text, std::regex::ECMAScript | std::regex_constants::__polynomial);
  } catch (const std::regex_error& error) {
    return Error::Invalid(path, ": the pattern '", Printable(key, 80),
                          "' is no regular expression: ", error.what());
  }
}

template <class T>
const T& Matching(const std::vector<std::pair<std::regex, T>>& patterns, const std::string& module,
                  const T& otherwise) {
  for (const auto& [pattern, value] : patterns)
    if (std::regex_match(module, pattern)) return value;
  return otherwise;
}

// The entries of one pattern, in their order, which nlohmann::json loses.
Result<std::vector<std::pair<std::string, nlohmann::json>>> EntriesOf(const std::string& text,
                                                                      const char* key,
                                                                      const std::string& path) {
  std::vector<std::pair<std::string, nlohmann::json>> out;
  const auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return out;
  if (!found->is_object())
    return Error::Corrupt(path, ": '", key, "' is not an object of patterns and numbers");
  for (const auto& [pattern, value] : found->items()) out.emplace_back(pattern, nlohmann::json(value));
  return out;
}

Result<double> AlphaOf(const nlohmann::json& value, const std::string& what, const std::string& path) {
  const double alpha = value.is_number() ? value.get<double>() : std::nan("");
  if (!std::isfinite(alpha) || std::abs(alpha) > 1e6)
    return Error::Corrupt(path, ": ", what, " is ", Printable(JsonText(value), 60), ", expected a number");
  return alpha;
}

}  // namespace

Result<PeftConfig> PeftConfig::Read(const std::filesystem::path& file) {
  const std::string path = file.string();
  CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(file));
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, path));
  CELER_ASSIGN(const std::string type, fields.GetString("peft_type", "LORA"));
  if (type != "LORA")
    return Error::Unsupported(path, ": 'peft_type' is '", Printable(type, 40), "'; LORA is supported");
  CELER_RETURN_IF_ERROR(CheckFields(json, path));
  CELER_RETURN_IF_ERROR(CheckInitialization(json, path));
  PeftConfig out;
  CELER_ASSIGN(out.rank_, fields.GetInt("r", 1, kMostLoraRank, 8));
  CELER_ASSIGN(out.alpha_, AlphaOf(json.value("lora_alpha", nlohmann::json(8)), "'lora_alpha'", path));
  CELER_ASSIGN(out.rank_stabilized_, fields.GetBool("use_rslora", false));
  CELER_ASSIGN(out.dora_, fields.GetBool("use_dora", false));
  CELER_ASSIGN(out.tied_, fields.GetBool("ensure_weight_tying", false));
  CELER_ASSIGN(const std::string version, fields.GetString("peft_version", ""));
  for (int minor = 17; minor < 19; ++minor)
    out.turned_experts_ |= version.starts_with("0." + std::to_string(minor) + ".");
  CELER_ASSIGN(const std::string text, ReadTextFile(file, JsonLimits().max_bytes));
  CELER_ASSIGN(const auto ranks, EntriesOf(text, "rank_pattern", path));
  for (const auto& [key, value] : ranks) {
    CELER_ASSIGN(std::regex pattern, PatternRegex(key, path));
    if (!value.is_number_integer() || value < 1 || value > kMostLoraRank)
      return Error::Corrupt(path, ": the rank of '", Printable(key, 80), "' is ",
                            Printable(JsonText(value), 40), ", expected 1 to ", kMostLoraRank);
    out.ranks_.emplace_back(std::move(pattern), value.get<int64_t>());
  }
  CELER_ASSIGN(const auto alphas, EntriesOf(text, "alpha_pattern", path));
  for (const auto& [key, value] : alphas) {
    CELER_ASSIGN(std::regex pattern, PatternRegex(key, path));
    CELER_ASSIGN(const double alpha, AlphaOf(value, "the alpha of '" + Printable(key, 80) + "'", path));
    out.alphas_.emplace_back(std::move(pattern), alpha);
  }
  return out;
}

int64_t PeftConfig::RankOf(const std::string& module) const {
  return Matching(ranks_, module, rank_);
}

double PeftConfig::ScaleOf(const std::string& module) const {
  const auto rank = static_cast<double>(RankOf(module));
  return Matching(alphas_, module, alpha_) / (rank_stabilized_ ? std::sqrt(rank) : rank);
}

}  // namespace celer
