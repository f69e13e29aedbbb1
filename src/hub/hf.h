// A model from the Hugging Face hub, or a mirror of it: the list of files through its API, the files with
// curl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/catalog.h"
#include "hub/store.h"

namespace celer::cli {

// The folder, or the file where one file is the model. HF_ENDPOINT and HF_TOKEN are respected.
Result<std::filesystem::path> PullFromHub(const HubName& name, const FetchOptions& options);

// Where an earlier PullFromHub left it; NotFound if there was none that finished.
Result<std::filesystem::path> PulledFromHub(const HubName& name);

struct HubFile {
  std::string path;  // inside the repository; safe to join to a folder
  int64_t bytes = 0;
  std::string sha256;         // empty for small files, of which the hub gives no such hash
  std::string git_hash = {};  // but this one
};

// The API's answer: [{"type": "file", "path": ..., "size": ..., "lfs": {"oid": sha256, "size": ...}}, ...].
// Refuses names that would lead out of the folder.
Result<std::vector<HubFile>> ParseHubList(std::string_view json, const std::string& where);

// Of all files, those that make the model: configuration and tokenizer with safetensors, or else its one GGUF
// file.
Result<std::vector<HubFile>> ChooseModelFiles(const std::vector<HubFile>& files, const HubName& name);

}  // namespace celer::cli
