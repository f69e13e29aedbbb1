// Writes GGUF v3. Metadata and the tensor table first, then Write() asks for each tensor's data in pieces, so
// that a file larger than memory can be made.
//
//   GgufWriter writer;
//   writer.SetString("general.architecture", "llama");
//   writer.AddTensor({"token_embd.weight", DType::kQ8_0, {32000, 4096}});
//   writer.Write(path, [&](const TensorSpec& tensor, const TensorSink& sink) { return sink(Rows(tensor)); });
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "io/file/tensor_record.h"
#include "io/gguf/gguf.h"

namespace celer {

// general.file_type, which says what most matrices are; nullopt for types that have no number.
std::optional<uint32_t> GgufFileType(DType dtype);

class GgufWriter {
 public:
  explicit GgufWriter(int64_t alignment = 32);  // a power of two, at least 8

  // A key may be set once.
  void SetUint32(std::string_view key, uint32_t value);
  void SetInt32(std::string_view key, int32_t value);
  void SetUint64(std::string_view key, uint64_t value);
  void SetFloat32(std::string_view key, float value);
  void SetBool(std::string_view key, bool value);
  void SetString(std::string_view key, std::string_view value);
  void SetStringArray(std::string_view key, std::span<const std::string> values);
  void SetFloatArray(std::string_view key, std::span<const float> values);
  void SetIntArray(std::string_view key, std::span<const int32_t> values);
  void SetBoolArray(std::string_view key, const std::vector<bool>& values);

  // A value out of another file, as it is. Not general.alignment, which is this writer's own.
  void Copy(const GgufValue& value);

  void AddTensor(TensorSpec tensor);  // shape outermost first, rank 1 to 4
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // Length of the file that Write() will make.
  int64_t FileBytes() const;

  // Writes beside the target and renames at the end, so that a broken write leaves no half file. `check`, if there is
  // one, is given the finished file before it gets its name; after an error it never does. A device or a pipe is not
  // checked.
  using FileCheck = std::function<Status(const std::filesystem::path&)>;
  Status Write(const std::filesystem::path& path, const TensorFill& fill, const FileCheck& check = {}) const;

 private:
  void Key(std::string_view key, GgufType type);
  std::string Header()  // everything before the data, padded to the alignment
      const;

  int64_t alignment_;
  std::string metadata_;  // encoded key/value pairs
  uint64_t metadata_count_ = 0;
  std::unordered_set<std::string> keys_;
  std::unordered_set<std::string> names_;
  std::vector<TensorSpec> tensors_;
};

}  // namespace celer
