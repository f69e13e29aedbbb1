#include "server/api/pooling.h"

#include <optional>

#include "io/file/contained_path.h"
#include "io/file/printable.h"
#include "io/gguf/gguf.h"
#include "io/json/json.h"

namespace celer::server {
namespace {

namespace fs = std::filesystem;
using PlainJson = nlohmann::json;

// The name of a mode as sentence-transformers has it.
std::optional<Pooling> FromName(std::string_view mode) {
  if (mode == "mean" || mode == "mean_tokens") return Pooling::kMean;
  if (mode == "lasttoken" || mode == "last") return Pooling::kLast;
  return std::nullopt;
}

std::string TextOf(const PlainJson& object, const char* name) {
  const auto it = object.is_object() ? object.find(name) : object.end();
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

void Take(std::string_view mode, PoolingChoice* choice) {
  if (const auto pooling = FromName(mode))
    choice->pooling = *pooling;
  else
    choice->problem = choice->from + " asks for '" + Printable(mode, 40) +
                      "' pooling, and only mean and last are supported; --pooling chooses one of them";
}

// {"pooling_mode": "mean"}, or a flag for each mode: {"pooling_mode_mean_tokens": true, ...}
void ReadPoolingConfig(const PlainJson& config, PoolingChoice* choice) {
  constexpr std::string_view kPrefix = "pooling_mode_";
  std::string mode = TextOf(config, "pooling_mode");
  for (const auto& [name, value] : config.items())
    if (name.starts_with(kPrefix) && value == true)
      mode += (mode.empty() ? "" : "+") + name.substr(kPrefix.size());
  if (mode.empty())
    choice->problem = choice->from + " names no pooling mode; --pooling chooses one";
  else
    Take(mode, choice);
}

// modules.json of sentence-transformers: the steps from a text to its embedding.
Result<PoolingChoice> ReadModules(const fs::path& folder) {
  const fs::path file = folder / "modules.json";
  CELER_ASSIGN(const PlainJson modules, ReadJsonFile(file));
  PoolingChoice choice{.from = "modules.json", .meant = true};
  bool found = false;
  if (!modules.is_array()) return Error::Corrupt(file.string(), ": it is no array of modules");
  for (const PlainJson& module : modules) {
    const std::string type = TextOf(module, "type");
    const std::string kind = type.substr(type.rfind('.') + 1);
    if (kind == "Transformer" || kind == "Normalize") continue;  // embeddings are always normalised
    if (kind != "Pooling") {
      choice.problem = "modules.json has a '" + Printable(kind, 40) +
                       "' module, which is not supported; --pooling leaves it out";
      return choice;
    }
    const std::string path = TextOf(module, "path");
    CELER_ASSIGN(const fs::path config_file, ResolveInside(folder, path + "/config.json", file.string()));
    CELER_ASSIGN(const PlainJson config, ReadJsonFile(config_file));
    if (!config.is_object()) return Error::Corrupt(config_file.string(), ": it is no object");
    choice.from = path + "/config.json";
    ReadPoolingConfig(config, &choice);
    found = true;
  }
  if (!found) choice.problem = "modules.json has no pooling module; --pooling chooses one";
  return choice;
}

// ARCHITECTURE.pooling_type, as llama.cpp writes it for such models.
Result<PoolingChoice> ReadGguf(const fs::path& path) {
  constexpr const char* kNames[] = {"none", "mean", "cls", "last", "rank"};
  PoolingChoice choice{.from = "default"};
  CELER_ASSIGN(const GgufFile file, GgufFile::Open(path));
  const std::string key = std::string(file.GetString("general.architecture").value_or("")) + ".pooling_type";
  const auto type = file.GetUint(key);
  if (!type || *type == 0) return choice;
  choice.from = key;
  choice.meant = true;
  Take(*type < std::size(kNames) ? kNames[*type] : std::to_string(*type), &choice);
  return choice;
}

}  // namespace

Result<PoolingChoice> ChoosePooling(const fs::path& model, Pooling asked) {
  PoolingChoice choice{.from = "default"};
  std::error_code ignored;
  if (fs::is_directory(model, ignored)) {
    if (fs::exists(model / "modules.json", ignored)) {
      CELER_ASSIGN(choice, ReadModules(model));
    }
  } else if (model.extension() == ".gguf") {
    CELER_ASSIGN(choice, ReadGguf(model));
  }
  if (asked != Pooling::kNone)
    choice = {.pooling = asked, .from = "--pooling", .meant = choice.meant, .problem = {}};
  return choice;
}

const char* Name(Pooling pooling) {
  return pooling == Pooling::kMean ? "mean" : pooling == Pooling::kLast ? "last" : "none";
}

}  // namespace celer::server
