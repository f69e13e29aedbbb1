#include "hub/model_path.h"

#include <system_error>

#include "base/suggest.h"
#include "hub/catalog.h"
#include "hub/hf.h"

namespace celer::cli {

namespace fs = std::filesystem;

Result<fs::path> ResolveModelPath(const std::string& path_or_name) {
  if (path_or_name.empty())
    return Error::Invalid("the model is ''; give a path, or a name from celer pull --list");
  std::error_code error;
  const fs::path path(path_or_name);
  if (fs::exists(path, error)) return path;
  if (error && error != std::errc::filename_too_long)
    return Error::Io(path_or_name, ": cannot be examined: ", error.message());
  if (HubName::IsOne(path_or_name)) {
    CELER_ASSIGN(const HubName name, HubName::Parse(path_or_name));
    return PulledFromHub(name);
  }
  if (const CatalogEntry* entry = FindInCatalog(path_or_name)) {
    CELER_ASSIGN(const fs::path models, ModelsFolder());
    const fs::path file = models / entry->file;
    const auto bytes = fs::file_size(file, error);
    if (!error && static_cast<int64_t>(bytes) == entry->bytes) return file;
    return Error::NotFound("'", entry->name, "' is not here yet; run celer pull ", entry->name);
  }
  const std::string hint = DidYouMean(path_or_name, CatalogNames());
  return Error::NotFound(path_or_name, ": no such file or folder, and no model of that name",
                         hint.empty() ? "; celer pull --list shows the names" : hint);
}

}  // namespace celer::cli
