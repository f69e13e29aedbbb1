#include "io/file/contained_path.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "io/file/printable.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

bool IsUnder(const fs::path& path, const fs::path& folder) {
  const auto [left, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return left == folder.end() && rest != path.end();
}

}  // namespace

Result<fs::path> ResolveInside(const fs::path& folder, std::string_view name, std::string_view source) {
  const fs::path relative(name);
  const bool climbs =
      std::any_of(relative.begin(), relative.end(), [](const fs::path& part) { return part == ".."; });
  if (name.empty() || name.find('\0') != std::string_view::npos || relative.is_absolute() || climbs)
    return Error::Corrupt(source, ": names the file '", Printable(name),
                          "', which is not a plain name inside the model's folder");

  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error) return Error::NotFound(folder.string(), ": no such folder");
  const fs::path target = fs::canonical(root / relative, error);
  if (error)
    return Error::NotFound(source, ": names the file '", Printable(name), "', which is not in ",
                           folder.string());

  bool inside = IsUnder(target, root);
  if (!inside && root.parent_path().filename() == "snapshots")
    inside = IsUnder(target, root.parent_path().parent_path() / "blobs");
  const bool weights = target.extension() == ".safetensors";
  if (!inside && !(weights && target.filename() == relative.filename()))
    return Error::Corrupt(source, ": names the file '", Printable(name), "', a link that leads out of ",
                          folder.string(), " to '", Printable(target.string()),
                          "'; a link of your own must lead to a file of the same name");
  if (!fs::is_regular_file(target, error))
    return Error::Corrupt(source, ": names '", Printable(name), "', which is not a regular file");
  return target;
}

}  // namespace celer
