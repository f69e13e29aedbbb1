#include "cli/shared/resolve_model.h"

#include <filesystem>
#include <system_error>

#include "base/result.h"
#include "cli/limits/model.h"
#include "hub/model_path.h"
#include "models/config/decoder_config.h"
#include "models/load/model.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

// GGUF and whatever else the models module reads: the shape lies beside the weights.
Result<LlmShape> ShapeFromWeights(const fs::path& path) {
  CELER_ASSIGN(const DecoderConfig config, LoadDecoderConfig(path));
  return ToLlmShape(config, path.stem().string());
}

Result<LlmShape> ShapeFromPath(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    const fs::path config = path / "config.json";
    if (!fs::exists(config, error))
      return Error::NotFound(path.string(),
                             ": the folder holds no config.json, so it is not a model's folder");
    return ShapeFromConfigJson(config);
  }
  return path.extension() == ".json" ? ShapeFromConfigJson(path) : ShapeFromWeights(path);
}

}  // namespace

Result<LlmShape> ResolveModel(const std::string& name_or_path) {
  if (name_or_path.empty())
    return Error::Invalid("--model '': give a name from celer limits --list, or a path");
  auto preset = FindModelPreset(name_or_path);
  if (preset) return preset;
  const fs::path path(name_or_path);
  std::error_code error;
  if (fs::exists(path, error)) {
    CELER_ASSIGN(LlmShape shape, ShapeFromPath(path));
    CELER_RETURN_IF_ERROR(Validate(shape));
    return shape;
  }
  const bool looks_like_path = name_or_path.find('/') != std::string::npos || path.extension() == ".json" ||
                               path.extension() == ".gguf";
  if (looks_like_path) return Error::NotFound(name_or_path, ": no such file or folder");
  // A model that was pulled is found by its name.
  if (const auto pulled = ResolveModelPath(name_or_path)) {
    CELER_ASSIGN(LlmShape shape, ShapeFromPath(*pulled));
    CELER_RETURN_IF_ERROR(Validate(shape));
    return shape;
  }
  return preset.error();
}

}  // namespace celer::cli
