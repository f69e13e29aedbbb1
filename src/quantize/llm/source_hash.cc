#include "quantize/llm/source_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/log.h"
#include "celer/version.h"
#include "io/file/content_hash.h"
#include "io/file/mapped_file.h"
#include "io/file/sha256.h"
#include "io/gguf/gguf.h"
#include "io/safetensors/safetensors.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

constexpr int kPartsVersion = 3;  // counts changes of the methods and of the files in a work folder

// Few and short lines go into SHA-256; what they say of content is its ContentHash().
class KeyHash {
 public:
  explicit KeyHash(ThreadPool& pool) : pool_(pool) {}

  void Line(std::string_view text) {
    sum_.Update(std::as_bytes(std::span(text.data(), text.size())));
    sum_.Update(std::as_bytes(std::span("\n", 1)));
  }
  void Content(std::string_view name, std::span<const std::byte> bytes) {
    const std::span<const std::byte> parts[] = {bytes};
    Line(fmt::format("{}:{} {} {:016x}", name.size(), name, bytes.size(), ContentHash(parts, pool_)));
    bytes_ += bytes.size();
  }
  template <class File>
  void Tensors(const File& file) {
    for (const TensorRecord& tensor : file.tensors()) {
      Line(fmt::format("{} {}", Name(tensor.dtype), tensor.shape.ToString()));
      Content(tensor.name, tensor.bytes);
      file.DropPages(tensor);
    }
  }
  Status File(const fs::path& path) {
    std::error_code ignored;
    if (fs::file_size(path, ignored) == 0) {
      Content(path.filename().string(), {});
      return {};
    }
    CELER_ASSIGN(const MappedFile file, MappedFile::Open(path));
    Content(path.filename().string(), file.bytes());
    return {};
  }
  size_t bytes() const { return bytes_; }
  std::string Finish() { return sum_.Finish(); }

 private:
  ThreadPool& pool_;
  Sha256 sum_;
  size_t bytes_ = 0;
};

Status HashGguf(const fs::path& path, KeyHash* key) {
  CELER_ASSIGN(const GgufFile file, GgufFile::Open(path));
  for (const GgufValue& value : file.metadata()) {
    key->Line(value.TypeName());
    key->Content(value.key, value.data);
  }
  key->Tensors(file);
  return {};
}

Status HashFolder(const fs::path& path, KeyHash* key) {
  CELER_RETURN_IF_ERROR(key->File(path / "config.json"));
  CELER_ASSIGN(const std::vector<fs::path> files, FilesBesideWeights(path));
  for (const fs::path& file : files) CELER_RETURN_IF_ERROR(key->File(file));
  CELER_ASSIGN(const SafetensorsModel model, SafetensorsModel::Open(path));
  key->Tensors(model);
  return {};
}

}  // namespace

Result<std::vector<fs::path>> FilesBesideWeights(const fs::path& folder) {
  // Of other packages, about weights that the new folder does not have.
  constexpr std::string_view kStale[] = {"quantize_config.json", "quant_config.json", "hf_quant_config.json"};
  constexpr std::string_view kWeights[] = {".safetensors", ".bin", ".pt", ".pth", ".gguf"};
  const auto is_among = [](const auto& list, const std::string& text) {
    return std::find(std::begin(list), std::end(list), text) != std::end(list);
  };
  std::vector<fs::path> out;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file(error) || name == "config.json" || name.ends_with(".safetensors.index.json") ||
        is_among(kWeights, entry.path().extension().string()) || is_among(kStale, name) ||
        name.starts_with("."))
      continue;
    out.push_back(entry.path());
  }
  if (error) return Error::Io(folder.string(), ": cannot be listed: ", error.message());
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::string> HashModel(const fs::path& model, ThreadPool& pool) {
  const auto start = std::chrono::steady_clock::now();
  KeyHash key(pool);
  std::error_code ignored;
  CELER_RETURN_IF_ERROR(fs::is_directory(model, ignored) ? HashFolder(model, &key) : HashGguf(model, &key));
  log::Info("{}: hash of {} bytes in {:.2f} s", model.string(), key.bytes(),
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return key.Finish();
}

Result<std::string> PartsKey(const fs::path& model, const QuantizePlan& plan, Method method,
                             const CalibrationText& text, const Device& device, ThreadPool& pool) {
  KeyHash key(pool);
  CELER_ASSIGN(const std::string content, HashModel(model, pool));
  key.Line(content);
  for (const PlannedTensor& tensor : plan.tensors)
    key.Line(fmt::format("{}:{} {} {} {}", tensor.name.size(), tensor.name, Name(tensor.dtype),
                         tensor.shape.ToString(), tensor.target.Name()));
  key.Content("tokens", std::as_bytes(std::span(text.tokens)));
  return fmt::format("{} {} {} {} {} {}", kPartsVersion, Version(), Name(method), text.window,
                     device.is_cpu() ? "cpu" : "gpu", key.Finish());
}

}  // namespace celer
