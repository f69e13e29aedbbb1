// GGUF v2 and v3, little-endian: typed metadata, a tensor table, then the tensors' data at aligned offsets.
// A model may be split into parts, model-00001-of-00003.gguf and so on, in one folder: the first has the
// metadata, all have tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "io/file/mapped_file.h"
#include "io/file/tensor_table.h"

namespace celer {

enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// One metadata value; views into the file, already checked to lie inside it.
struct GgufValue {
  std::string_view key;
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  // of an array
  uint64_t count = 1;                        // elements of an array
  std::span<const std::byte> data;           // the scalar, the string's text, or the array's elements

  std::string TypeName() const;                       // "u32", "str[32000]"
  std::string ToText(size_t max_elements = 8) const;  // for people; long arrays and strings are abbreviated
};

class GgufFile {
 public:
  static constexpr int kMaxArrayDepth = 4;

  // Of a split model any part may be named; the others are opened with it, and the result is the whole.
  static Result<GgufFile> Open(const std::filesystem::path& path);
  // One file. `bytes` outlive the result; `source` is what error sentences call it.
  static Result<GgufFile> FromBytes(std::span<const std::byte> bytes, std::string source);
  // All parts of a split model in their order, at least one, as one.
  static Result<GgufFile> Join(std::vector<GgufFile> parts);

  int version() const { return version_; }
  int64_t alignment() const { return alignment_; }
  const std::string& source() const { return source_; }
  std::vector<std::filesystem::path> files() const;  // that were opened, in the order of the parts

  const std::vector<TensorRecord>& tensors() const { return tensors_.records(); }  // in the order of the file
  const TensorRecord* Find(std::string_view name) const { return tensors_.Find(name); }

  // Metadata in the order of the file. The getters give nullopt when the key is missing or its value is of
  // another kind or out of range; views live as long as this file.
  const std::vector<GgufValue>& metadata() const { return metadata_; }
  const GgufValue* FindValue(std::string_view key) const;
  bool Has(std::string_view key) const { return FindValue(key) != nullptr; }
  std::optional<uint64_t> GetUint(std::string_view key) const;  // from any integer type
  std::optional<int64_t> GetInt(std::string_view key) const;    // from any integer type
  std::optional<double> GetFloat(std::string_view key) const;   // from f32, f64 and integers
  std::optional<bool> GetBool(std::string_view key) const;
  std::optional<std::string_view> GetString(std::string_view key) const;
  std::optional<std::vector<std::string_view>> GetStringArray(std::string_view key) const;
  std::optional<std::vector<float>> GetFloatArray(std::string_view key) const;  // from f32, f64
  std::optional<std::vector<int64_t>> GetIntArray(
      std::string_view key) const;  // from any integer type or bool

  void DropPages(const TensorRecord& tensor) const;

 private:
  static Result<GgufFile> OpenOne(const std::filesystem::path& path);

  std::vector<MappedFile> mapped_;  // one for each part
  std::string source_;
  int version_ = 0;
  int64_t alignment_ = 32;
  std::vector<GgufValue> metadata_;
  TensorTable tensors_;
  std::unordered_map<std::string_view, size_t> keys_;  // views into the file
};

// The name of a GGUF tensor type ("Q4_K", "IQ2_XXS"), or "type 99" for one that nobody has defined.
std::string GgufTensorTypeName(uint32_t type);
// The number of a type in a file, or nullopt for one that GGUF does not have (u8, bool, fp8).
std::optional<uint32_t> GgufTensorTypeId(DType dtype);

namespace gguf_internal {
size_t ScalarBytes(GgufType type);  // 0 for strings and arrays
}

}  // namespace celer
