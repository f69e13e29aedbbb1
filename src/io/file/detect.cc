#include "io/file/detect.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "io/file/mapped_file.h"
#include "io/llama2c/llama2c.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSupported =
    "supported are a Hugging Face folder with safetensors, a GGUF file, a .safetensors file and a llama2.c "
    ".bin file";

// Two of the protocols that torch.save and pickle.dump write; a zip is what newer .pt files are.
bool LooksLikePickle(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x80} && bytes[1] >= std::byte{2} &&
         bytes[1] <= std::byte{5};
}

bool LooksLikeZip(std::span<const std::byte> bytes) {
  return bytes.size() >= 4 && std::memcmp(bytes.data(), "PK\x03\x04", 4) == 0;
}

bool LooksLikeSafetensors(std::span<const std::byte> bytes) {
  uint64_t header = 0;
  if (bytes.size() < 10) return false;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header >= 2 && header <= bytes.size() - 8 && bytes[8] == std::byte{'{'};
}

Result<FileKind> DetectFolder(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / "config.json", error)) return FileKind::kHfDirectory;
  std::vector<std::string> models;
  fs::directory_iterator it(path, error);
  if (error) return Error::Io(path.string(), ": the folder cannot be read: ", error.message());
  for (const fs::directory_iterator end; it != end; it.increment(error)) {
    const std::string extension = it->path().extension().string();
    if (extension == ".gguf" || extension == ".safetensors") models.push_back(it->path().string());
  }
  std::sort(models.begin(), models.end());
  if (!models.empty())
    return Error::NotFound(path.string(), ": the folder has no config.json; name a file in it, such as ",
                           models[0]);
  return Error::NotFound(path.string(), ": the folder has no config.json; ", kSupported);
}

}  // namespace

std::string_view Name(FileKind kind) {
  switch (kind) {
    case FileKind::kHfDirectory:
      return "Hugging Face folder";
    case FileKind::kGguf:
      return "GGUF";
    case FileKind::kSafetensors:
      return "safetensors";
    case FileKind::kLlama2c:
      return "llama2.c";
  }
  return "?";
}

Result<FileKind> DetectFile(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return DetectFolder(path);
  CELER_ASSIGN(const MappedFile file, MappedFile::Open(path));
  const auto bytes = file.bytes();
  if (bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0) return FileKind::kGguf;
  if (LooksLikeSafetensors(bytes)) return FileKind::kSafetensors;
  if (LooksLikePickle(bytes))
    return Error::Unsupported(path.string(),
                              ": is a Python pickle (.pt, .pth, .bin), which can run code and is not loaded; "
                              "get the model as safetensors or GGUF");
  if (LooksLikeZip(bytes))
    return Error::Unsupported(
        path.string(),
        ": is a zip archive, as PyTorch's .pt files with a pickle inside, and is not loaded; "
        "get the model as safetensors or GGUF");
  const auto llama2c = Llama2cFile::FromBytes(bytes, path.string());
  if (llama2c) return FileKind::kLlama2c;
  // A name or a magic number that says llama2.c deserves that format's own complaint.
  uint32_t magic = 0;
  if (bytes.size() >= sizeof(magic)) std::memcpy(&magic, bytes.data(), sizeof(magic));
  if (magic == 0x616b3432 || path.extension() == ".bin") return llama2c.error();
  if (path.extension() == ".safetensors")
    return Error::Corrupt(path.string(),
                          ": is named .safetensors, but its header is not one; fetch it again");
  return Error::Unsupported(path.string(), ": is no model file that celer knows; ", kSupported);
}

}  // namespace celer
