#include "hub/catalog.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "io/json/json.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostBytes = int64_t{1} << 40;  // of a file

const char* NonEmpty(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value ? value : nullptr;
}

bool IsPlainName(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= 128 && text.front() != '.' && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), plain);
}

}  // namespace

Result<std::vector<CatalogEntry>> ParseCatalog(std::string_view text) {
  CELER_ASSIGN(const auto wheels, ParseJson(text, "catalog.json"));
  std::vector<CatalogEntry> entries;
  if (!wheels.is_array()) return Error::Corrupt("catalog.json: must hold an array of wheels");
  for (const auto& object : wheels) {
    CELER_ASSIGN(const JsonFields wheel, JsonFields::Of(object, "catalog.json"));
    CatalogEntry entry;
    CELER_ASSIGN(entry.package, wheel.GetString("package"));
    CELER_ASSIGN(entry.version, wheel.GetString("version"));
    CELER_ASSIGN(entry.wheel, wheel.GetString("wheel"));
    CELER_ASSIGN(entry.wheel_bytes, wheel.GetInt("wheel_bytes", 1, kMostBytes));
    CELER_ASSIGN(entry.licence, wheel.GetString("licence"));
    const auto* files = wheel.Find("files");
    if (!files || !files->is_array()) return Error::Corrupt(entry.wheel, ": 'files' must be an array");
    for (const auto& inner : *files) {
      CELER_ASSIGN(const JsonFields file, JsonFields::Of(inner, entry.wheel));
      CELER_ASSIGN(entry.name, file.GetString("name"));
      CELER_ASSIGN(entry.summary, file.GetString("summary"));
      CELER_ASSIGN(entry.member, file.GetString("member"));
      CELER_ASSIGN(entry.file, file.GetString("file"));
      CELER_ASSIGN(entry.bytes, file.GetInt("bytes", 1, kMostBytes));
      CELER_ASSIGN(entry.sha256, file.GetString("sha256"));
      entries.push_back(entry);
    }
  }
  return entries;
}

std::span<const CatalogEntry> Catalog() {
  static const std::vector<CatalogEntry> all = [] {
    auto parsed = ParseCatalog(CatalogFiles().front().body);
    CELER_CHECK(parsed);  // hub_test.cc
    return *std::move(parsed);
  }();
  return all;
}

const CatalogEntry* FindInCatalog(std::string_view name) {
  for (const CatalogEntry& entry : Catalog())
    if (entry.name == name) return &entry;
  return nullptr;
}

std::vector<std::string> CatalogNames() {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : Catalog()) names.push_back(entry.name);
  return names;
}

Result<fs::path> ModelsFolder() {
  fs::path cache;
  if (const char* ours = NonEmpty("CELER_CACHE"))
    cache = ours;
  else if (const char* xdg = NonEmpty("XDG_CACHE_HOME"))
    cache = fs::path(xdg) / "celer";
  else if (const char* home = NonEmpty("HOME"))
    cache = fs::path(home) / ".cache" / "celer";
  else
    return Error::Invalid(
        "neither CELER_CACHE, XDG_CACHE_HOME nor HOME is set; set CELER_CACHE to a folder for models");
  std::error_code error;
  const fs::path absolute = fs::absolute(cache, error);
  return (error ? cache : absolute) / "models";
}

bool IsSafeRelativePath(std::string_view path) {
  if (path.empty() || path.size() > 1024) return false;
  const auto odd = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\'; };
  if (std::any_of(path.begin(), path.end(), odd)) return false;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part.front() == '-') return false;
    at = end + 1;
  }
  return true;
}

Result<HubName> HubName::Parse(std::string_view text) {
  const Error malformed = Error::Invalid(
      "'", text, "' is not of the form hf:org/name, hf:org/name@revision or hf:org/name/file.gguf");
  if (!IsOne(text)) return malformed;
  std::string_view rest = text.substr(3);
  HubName name;
  if (const size_t at = rest.find('@'); at != std::string_view::npos) {
    name.revision = rest.substr(at + 1);
    rest = rest.substr(0, at);
    if (!IsPlainName(name.revision)) return malformed;
  }
  const size_t slash = rest.find('/');
  if (slash == std::string_view::npos) return malformed;
  const size_t second = rest.find('/', slash + 1);
  const std::string_view org = rest.substr(0, slash);
  const std::string_view model =
      rest.substr(slash + 1, second == std::string_view::npos ? second : second - slash - 1);
  if (!IsPlainName(org) || !IsPlainName(model)) return malformed;
  name.repository = std::string(org) + "/" + std::string(model);
  if (second != std::string_view::npos) {
    name.file = rest.substr(second + 1);
    if (!IsSafeRelativePath(name.file)) return malformed;
  }
  return name;
}

std::string HubName::Text() const {
  return "hf:" + repository + (file.empty() ? "" : "/" + file) + (revision == "main" ? "" : "@" + revision);
}

fs::path HubName::Folder(const fs::path& models) const {
  std::string folder = repository;
  folder.replace(folder.find('/'), 1, "--");
  return models / (revision == "main" ? folder : folder + "@" + revision);
}

}  // namespace celer::cli
