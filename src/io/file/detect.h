// What kind of model a path names, from its magic bytes and not from its extension.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace celer {

enum class FileKind {
  kHfDirectory,  // a folder with config.json, as Hugging Face publishes models
  kGguf,
  kSafetensors,  // one file; a folder that holds one is kHfDirectory
  kLlama2c,
};

std::string_view Name(FileKind kind);

// An error says what the path seems to be (a pickle is named and will not be loaded) and what is supported.
Result<FileKind> DetectFile(const std::filesystem::path& path);

}  // namespace celer
