#include "io/gguf/gguf_writer.h"

#include <bit>

#include "base/check.h"
#include "base/safe_math.h"
#include "io/file/atomic_file.h"
#include "io/file/tensor_stream.h"

namespace celer {
namespace {

template <class T>
void Append(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendString(std::string* out, std::string_view text) {
  Append<uint64_t>(out, text.size());
  out->append(text);
}

template <class T>
void AppendArray(std::string* out, GgufType type, std::span<const T> values) {
  Append(out, static_cast<uint32_t>(type));
  Append<uint64_t>(out, values.size());
  out->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace

std::optional<uint32_t> GgufFileType(DType dtype) {
  const int type = Info(dtype).gguf_file_type;
  return type < 0 ? std::nullopt : std::optional(static_cast<uint32_t>(type));
}

GgufWriter::GgufWriter(int64_t alignment) : alignment_(alignment) {
  CELER_CHECK_GE(alignment, 8);
  CELER_CHECK(std::has_single_bit(static_cast<uint64_t>(alignment)));
  if (alignment != 32) SetUint32("general.alignment", static_cast<uint32_t>(alignment));
}

void GgufWriter::Key(std::string_view key, GgufType type) {
  CELER_CHECK(keys_.insert(std::string(key)).second);
  AppendString(&metadata_, key);
  Append(&metadata_, static_cast<uint32_t>(type));
  ++metadata_count_;
}

void GgufWriter::SetUint32(std::string_view key, uint32_t value) {
  Key(key, GgufType::kUint32);
  Append(&metadata_, value);
}
void GgufWriter::SetInt32(std::string_view key, int32_t value) {
  Key(key, GgufType::kInt32);
  Append(&metadata_, value);
}
void GgufWriter::SetUint64(std::string_view key, uint64_t value) {
  Key(key, GgufType::kUint64);
  Append(&metadata_, value);
}
void GgufWriter::SetFloat32(std::string_view key, float value) {
  Key(key, GgufType::kFloat32);
  Append(&metadata_, value);
}
void GgufWriter::SetBool(std::string_view key, bool value) {
  Key(key, GgufType::kBool);
  Append<uint8_t>(&metadata_, value ? 1 : 0);
}
void GgufWriter::SetString(std::string_view key, std::string_view value) {
  Key(key, GgufType::kString);
  AppendString(&metadata_, value);
}
void GgufWriter::SetStringArray(std::string_view key, std::span<const std::string> values) {
  Key(key, GgufType::kArray);
  Append(&metadata_, static_cast<uint32_t>(GgufType::kString));
  Append<uint64_t>(&metadata_, values.size());
  for (const std::string& value : values) AppendString(&metadata_, value);
}
void GgufWriter::SetFloatArray(std::string_view key, std::span<const float> values) {
  Key(key, GgufType::kArray);
  AppendArray(&metadata_, GgufType::kFloat32, values);
}
void GgufWriter::SetIntArray(std::string_view key, std::span<const int32_t> values) {
  Key(key, GgufType::kArray);
  AppendArray(&metadata_, GgufType::kInt32, values);
}

void GgufWriter::SetBoolArray(std::string_view key, const std::vector<bool>& values) {
  Key(key, GgufType::kArray);
  const std::vector<uint8_t> bytes(values.begin(), values.end());
  AppendArray(&metadata_, GgufType::kBool, std::span<const uint8_t>(bytes));
}

void GgufWriter::Copy(const GgufValue& value) {
  Key(value.key, value.type);
  if (value.type == GgufType::kArray) {
    Append(&metadata_, static_cast<uint32_t>(value.element_type));
    Append<uint64_t>(&metadata_, value.count);
  } else if (value.type == GgufType::kString) {
    Append<uint64_t>(&metadata_, value.data.size());
  }
  metadata_.append(reinterpret_cast<const char*>(value.data.data()), value.data.size());
}

void GgufWriter::AddTensor(TensorSpec tensor) {
  CELER_CHECK_GE(tensor.shape.rank(), 1);
  CELER_CHECK_LE(tensor.shape.rank(), 4);
  CELER_CHECK(GgufTensorTypeId(tensor.dtype).has_value());
  CELER_CHECK(TensorBytes(tensor).value_or(0) > 0);
  CELER_CHECK(names_.insert(tensor.name).second);
  tensors_.push_back(std::move(tensor));
}

std::string GgufWriter::Header() const {
  std::string out = "GGUF";
  Append<uint32_t>(&out, 3);
  Append<uint64_t>(&out, tensors_.size());
  Append(&out, metadata_count_);
  out += metadata_;
  uint64_t offset = 0;
  for (const TensorSpec& tensor : tensors_) {
    AppendString(&out, tensor.name);
    Append(&out, static_cast<uint32_t>(tensor.shape.rank()));
    for (int i = tensor.shape.rank() - 1; i >= 0; --i) Append(&out, static_cast<uint64_t>(tensor.shape[i]));
    Append(&out, *GgufTensorTypeId(tensor.dtype));
    Append(&out, offset);
    offset += RoundUp(static_cast<uint64_t>(*TensorBytes(tensor)), static_cast<uint64_t>(alignment_));
  }
  out.resize(RoundUp(out.size(), static_cast<uint64_t>(alignment_)), '\0');
  return out;
}

int64_t GgufWriter::FileBytes() const {
  uint64_t bytes = Header().size();
  for (const TensorSpec& tensor : tensors_)
    bytes += RoundUp(static_cast<uint64_t>(*TensorBytes(tensor)), static_cast<uint64_t>(alignment_));
  return static_cast<int64_t>(bytes);
}

Status GgufWriter::Write(const std::filesystem::path& path, const TensorFill& fill,
                         const FileCheck& check) const {
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  CELER_RETURN_IF_ERROR(file.Write(Header()));
  for (const TensorSpec& tensor : tensors_) {
    CELER_RETURN_IF_ERROR(StreamTensor(file, path, tensor, fill));
    const auto bytes = static_cast<uint64_t>(*TensorBytes(tensor));
    const std::string padding(RoundUp(bytes, static_cast<uint64_t>(alignment_)) - bytes, '\0');
    CELER_RETURN_IF_ERROR(file.Write(padding));
  }
  if (check && file.whole()) {
    CELER_ASSIGN(const std::filesystem::path written, file.Written());
    CELER_RETURN_IF_ERROR(check(written));
  }
  return file.Commit();
}

}  // namespace celer
