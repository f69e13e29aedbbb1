#include <unordered_map>
#include <unordered_set>

#include "base/safe_math.h"
#include "io/file/atomic_file.h"
#include "io/file/tensor_stream.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"

namespace celer {

Status WriteSafetensors(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                        const std::map<std::string, std::string>& metadata, const TensorFill& fill) {
  const auto quoted = [](const std::string& text) { return JsonText(nlohmann::json(text)); };
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    bool first = true;
    for (const auto& [key, value] : metadata) {
      header += (first ? "" : ",") + quoted(key) + ":" + quoted(value);
      first = false;
    }
    header += "}";
  }
  std::unordered_set<std::string_view> names;
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    const auto type = SafetensorsTypeName(tensor.dtype);
    if (!type)
      return Error::Unsupported(path.string(), ": tensor '", tensor.name, "' of type ", Name(tensor.dtype),
                                " cannot be stored in safetensors; write a GGUF");
    if (!names.insert(tensor.name).second)
      return Error::Invalid(path.string(), ": tensor '", tensor.name, "' comes twice");
    const auto bytes = TensorBytes(tensor);
    const auto end = bytes ? CheckedAdd(offset, *bytes) : std::nullopt;
    if (!end)
      return Error::Invalid(path.string(), ": tensor '", tensor.name, "': shape ", tensor.shape.ToString(),
                            " is too large");
    header += header.size() > 1 ? "," : "";
    header += quoted(tensor.name) + ":{\"dtype\":\"" + std::string(*type) + "\",\"shape\":[";
    for (int i = 0; i < tensor.shape.rank(); ++i) header += (i ? "," : "") + std::to_string(tensor.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(*end) + "]}";
    offset = *end;
  }
  header += "}";
  header.resize(RoundUp(header.size(), 8), ' ');  // the data starts aligned, as the format asks

  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  const uint64_t size = header.size();
  CELER_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(&size, 1))));
  CELER_RETURN_IF_ERROR(file.Write(header));
  for (const TensorSpec& tensor : tensors) CELER_RETURN_IF_ERROR(StreamTensor(file, path, tensor, fill));
  return file.Commit();
}

Status WriteSafetensors(const std::filesystem::path& path, std::span<const TensorRecord> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  std::unordered_map<std::string, std::span<const std::byte>> data;
  for (const TensorRecord& tensor : tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    data.emplace(tensor.name, tensor.bytes);
  }
  return WriteSafetensors(path, specs, metadata, [&](const TensorSpec& tensor, const TensorSink& sink) {
    return sink(data.at(tensor.name));
  });
}

}  // namespace celer
