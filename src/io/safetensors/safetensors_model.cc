// A model's folder: one file, or shards by an index.
#include <map>
#include <set>
#include <system_error>

#include "base/log.h"
#include "io/file/contained_path.h"
#include "io/file/printable.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxShards = 10'000;

// Shard file name -> the tensors that the index says it holds.
Result<std::map<std::string, std::set<std::string>>> ReadIndex(const fs::path& path) {
  CELER_ASSIGN(const auto json, ReadJsonFile(path));
  CELER_ASSIGN(const auto fields, JsonFields::Of(json, path.string()));
  CELER_ASSIGN(const auto map, fields.GetObject("weight_map"));
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, shard] : map.json().items()) {
    if (!shard.is_string())
      return Error::Corrupt(map.where(), ": tensor '", Printable(tensor), "' has no file name but ",
                            shard.type_name());
    shards[shard.get<std::string>()].insert(tensor);
  }
  if (shards.empty()) return Error::Corrupt(map.where(), " names no tensors");
  if (shards.size() > kMaxShards)
    return Error::Corrupt(map.where(), " names ", shards.size(), " files, at most ", kMaxShards,
                          " are accepted");
  return shards;
}

}  // namespace

Result<SafetensorsModel> SafetensorsModel::Open(const fs::path& path) {
  SafetensorsModel model;
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  const fs::path index = path / "model.safetensors.index.json";
  const bool single = folder && fs::exists(path / "model.safetensors", ignored);

  if (!folder || single) {
    // The user named the folder, and this name comes from nowhere else: a link may lead anywhere.
    const fs::path file_path = single ? path / "model.safetensors" : path;
    CELER_ASSIGN(auto file, SafetensorsFile::Open(file_path));
    model.files_.push_back(std::move(file));
    for (const TensorRecord& record : model.files_[0].tensors()) model.tensors_.Add(record);
    return model;
  }
  if (!fs::exists(index, ignored))
    return Error::NotFound(path.string(),
                           ": holds neither model.safetensors nor model.safetensors.index.json");

  CELER_ASSIGN(const auto shards, ReadIndex(index));
  for (const auto& [shard, names] : shards) {
    CELER_ASSIGN(const fs::path shard_path, ResolveInside(path, shard, index.string()));
    CELER_ASSIGN(auto file, SafetensorsFile::Open(shard_path));
    for (const std::string& name : names)
      if (!file.Find(name))
        return Error::Corrupt(index.string(), ": tensor '", Printable(name), "' is not in ", Printable(shard),
                              ", where the index puts it");
    const size_t extra_before = model.extra_.size();
    for (const TensorRecord& record : file.tensors()) {
      if (!names.contains(record.name)) {
        model.extra_.push_back(record.name);
        continue;
      }
      // The index is a JSON object: a tensor has one shard, so no name comes twice here.
      model.tensors_.Add(record);
    }
    if (model.extra_.size() > extra_before)
      log::WarningOnce("{}: {} tensors are not in the index and are ignored, the first is '{}'",
                       shard_path.string(), model.extra_.size() - extra_before,
                       Printable(model.extra_[extra_before]));
    model.files_.push_back(std::move(file));
  }
  return model;
}

// A file ignores a span that is not its own.
void SafetensorsModel::DropPages(const TensorRecord& tensor) const {
  for (const SafetensorsFile& file : files_) file.DropPages(tensor);
}

}  // namespace celer
