#include "io/file/disk_space.h"

#include <system_error>

namespace celer {

namespace fs = std::filesystem;

Status CheckFreeSpace(const fs::path& path, int64_t bytes, std::string_view remedy) {
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  if (fs::exists(there) && !fs::is_regular_file(there) && !fs::is_directory(there))
    return {};                                                               // a pipe, a device
  fs::path folder = fs::weakly_canonical(fs::absolute(path, error), error);  // where a link leads
  while (!fs::is_directory(folder, error) && folder != folder.parent_path()) folder = folder.parent_path();
  const fs::space_info space = fs::space(folder, error);
  if (error) return {};  // a file system that does not say; writing will
  if (bytes > 0 && space.available < static_cast<uintmax_t>(bytes))
    return Error::Io(path.string(), ": needs ", bytes / 1'000'000, " MB, and its disk has ",
                     space.available / 1'000'000, " MB free; ", remedy);
  return {};
}

}  // namespace celer
