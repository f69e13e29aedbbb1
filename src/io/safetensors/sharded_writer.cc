// A model's tensors as one file, or as several with an index.
#include <fmt/format.h>

#include "io/file/atomic_file.h"
#include "io/file/tensor_stream.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"

namespace celer {
namespace {

struct Shard {
  std::string file;
  std::vector<TensorSpec> tensors;
  int64_t bytes = 0;
};

std::vector<Shard> Split(std::span<const TensorSpec> tensors, int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  for (const TensorSpec& tensor : tensors) {
    const int64_t bytes = TensorBytes(tensor).value_or(0);
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > shard_bytes) shards.emplace_back();
    shards.back().tensors.push_back(tensor);
    shards.back().bytes += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

Status WriteIndex(const std::filesystem::path& path, const std::vector<Shard>& shards,
                  const std::map<std::string, std::string>& metadata) {
  nlohmann::json map = nlohmann::json::object(), about = metadata;
  int64_t total = 0;
  for (const Shard& shard : shards) {
    total += shard.bytes;
    for (const TensorSpec& tensor : shard.tensors) map[tensor.name] = shard.file;
  }
  about["total_size"] = total;
  const nlohmann::json index = {{"metadata", std::move(about)}, {"weight_map", std::move(map)}};
  return WriteWholeFile(path, JsonText(index, 2) + "\n");
}

}  // namespace

Status WriteShardedSafetensors(const std::filesystem::path& folder, std::span<const TensorSpec> tensors,
                               const std::map<std::string, std::string>& metadata, int64_t shard_bytes,
                               const TensorFill& fill) {
  const std::vector<Shard> shards = Split(tensors, shard_bytes);
  for (const Shard& shard : shards)
    CELER_RETURN_IF_ERROR(WriteSafetensors(folder / shard.file, shard.tensors, metadata, fill));
  if (shards.size() == 1) return {};
  return WriteIndex(folder / "model.safetensors.index.json", shards, metadata);
}

}  // namespace celer
