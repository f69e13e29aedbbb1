// safetensors: 8 bytes of header length, a JSON header, then the tensors' bytes without holes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/file/mapped_file.h"
#include "io/file/tensor_table.h"

namespace celer {

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::filesystem::path& path);
  // `bytes` outlive the result; `source` is what error sentences call it.
  static Result<SafetensorsFile> FromBytes(std::span<const std::byte> bytes, std::string source);

  const std::vector<TensorRecord>& tensors() const {
    return tensors_.records();
  }  // in the order of their bytes
  const TensorRecord* Find(std::string_view name) const { return tensors_.Find(name); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& source() const { return source_; }

  // The pages of a tensor that is done with (see MappedFile).
  void DropPages(const TensorRecord& tensor) const;

 private:
  std::optional<MappedFile> file_;
  std::string source_;
  TensorTable tensors_;
  std::map<std::string, std::string> metadata_;
};

// A model's tensors: model.safetensors, or the shards that model.safetensors.index.json names.
class SafetensorsModel {
 public:
  // A folder, or one .safetensors file.
  static Result<SafetensorsModel> Open(const std::filesystem::path& path);

  const std::vector<TensorRecord>& tensors() const { return tensors_.records(); }
  const TensorRecord* Find(std::string_view name) const { return tensors_.Find(name); }
  // Tensors that a shard holds and the index does not name; they are not among tensors().
  const std::vector<std::string>& extra_tensors() const { return extra_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }

  void DropPages(const TensorRecord& tensor) const;

 private:
  std::vector<SafetensorsFile> files_;
  TensorTable tensors_;
  std::vector<std::string> extra_;
};

// Writes in the order given, beside the target and then renamed, so that a broken write leaves no half file.
Status WriteSafetensors(const std::filesystem::path& path, std::span<const TensorRecord> tensors,
                        const std::map<std::string, std::string>& metadata = {});
// The same with the data made piece by piece: needs no memory for a large file.
Status WriteSafetensors(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                        const std::map<std::string, std::string>& metadata, const TensorFill& fill);
// The same as model.safetensors in a folder, or as shards of at most `shard_bytes` with an index, if no tensor is larger.
Status WriteShardedSafetensors(const std::filesystem::path& folder, std::span<const TensorSpec> tensors,
                               const std::map<std::string, std::string>& metadata, int64_t shard_bytes,
                               const TensorFill& fill);

// The name a type has in the header ("BF16"), or nullopt for the GGUF block types.
std::optional<std::string_view> SafetensorsTypeName(DType dtype);

}  // namespace celer
