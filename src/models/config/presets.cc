#include "models/config/presets.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/embedded_file.h"
#include "base/suggest.h"
#include "io/json/json.h"
#include "limits/model_presets.h"
#include "models/config/family.h"

namespace celer {

std::span<const EmbeddedFile> PresetFiles();

namespace {

using Json = nlohmann::ordered_json;

const Json& Presets() {
  static const Json presets = Json::parse(PresetFiles().front().body);
  return presets;
}

std::optional<Result<DecoderConfig>> Published(std::string_view name) {
  const auto preset = Presets().find(std::string(name));
  if (preset == Presets().end()) return std::nullopt;
  return ConfigFromHf(nlohmann::json(*preset), std::string(name));
}

Error Unknown(std::string_view name) {
  const std::string hint = DidYouMean(name, ModelPresetNames());
  return Error::NotFound("unknown model '", name, "'", hint.empty() ? "; see celer limits --list" : hint);
}

}  // namespace

Result<DecoderConfig> FindConfigPreset(std::string_view name) {
  if (auto config = Published(name)) return *std::move(config);
  if (const auto shape = FindPlainPreset(name)) return FromLlmShape(*shape);
  return Unknown(name);
}

std::optional<nlohmann::ordered_json> FindPresetJson(std::string_view name) {
  const auto preset = Presets().find(std::string(name));
  return preset == Presets().end() ? std::nullopt : std::optional(*preset);
}

Result<LlmShape> FindModelPreset(std::string_view name) {
  if (auto shape = FindPlainPreset(name)) return *std::move(shape);
  const auto config = Published(name);
  if (!config) return Unknown(name);
  if (!*config) return config->error();
  return ToLlmShape(**config, std::string(name));
}

std::vector<std::string> ModelPresetNames() {
  std::vector<std::string> names = PlainPresetNames();
  for (const auto& [name, config] : Presets().items()) names.push_back(name);
  return names;
}

}  // namespace celer
