#include "text/tokenizer/load_tokenizer.h"

#include <string>
#include <system_error>

#include "io/file/detect.h"
#include "io/gguf/gguf.h"

namespace celer {

Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    auto made = Tokenizer::FromHfDirectory(path);
    // Without a tokenizer it may be no model's folder at all, or one that cannot be read: that comes first.
    if (!made && made.error().code() == Error::Code::kNotFound) CELER_RETURN_IF_ERROR(DetectFile(path));
    return made;
  }
  if (path.extension() == ".json" || path.extension() == ".model") return Tokenizer::FromHfDirectory(path);
  const auto kind = DetectFile(path);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (kind && *kind == FileKind::kGguf) {
    CELER_ASSIGN(const GgufFile file, GgufFile::Open(path));
    return Tokenizer::FromGguf(file);
  }
  if (kind && *kind == FileKind::kSafetensors) {
    auto made = Tokenizer::FromHfDirectory(folder);
    if (!made && made.error().code() == Error::Code::kNotFound)
      return Error::NotFound(path.string(), ": one safetensors file has no tokenizer; give the folder that ",
                             "holds it, its config.json and its tokenizer.json");
    return made;
  }
  if (kind && *kind == FileKind::kLlama2c) {
    for (const char* name : {"tokenizer.bin", "tok512.bin", "tok4096.bin", "tok32000.bin"})
      if (fs::exists(folder / name, error)) return Tokenizer::FromLlama2c(folder / name, 0);
    return Error::NotFound(path.string(), ": no tokenizer.bin beside it; name one with `tokenizer`");
  }
  // llama2.c's tokenizer.bin has no magic: it is what is left.
  if (path.extension() == ".bin" && fs::exists(path, error)) return Tokenizer::FromLlama2c(path, 0);
  return kind.error();
}

}  // namespace celer
