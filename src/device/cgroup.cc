#include "device/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace celer {
namespace {

namespace fs = std::filesystem;

// The first line of a small file; empty if it cannot be read.
std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

template <class T>
void Tighten(std::optional<T>& limit, T value) {
  limit = limit ? std::min(*limit, value) : value;
}

void ReadMemory(const std::string& text, std::optional<uint64_t>& limit) {
  std::istringstream in(text);
  uint64_t bytes = 0;
  // Version 1 says "unlimited" with the largest multiple of a page that fits in 63 bits.
  if (in >> bytes && bytes < (uint64_t{1} << 62)) Tighten(limit, bytes);
}

void ReadQuota(const std::string& quota_and_period, std::optional<double>& limit) {
  std::istringstream in(quota_and_period);
  double quota = 0, period = 0;
  if (in >> quota >> period && quota > 0 && period > 0) Tighten(limit, quota / period);
}

// `group` and all its parents below `mount`. In a container the group's path may be the host's and not exist
// here; the mount's own root then holds the limits.
std::vector<fs::path> Ancestors(const fs::path& mount, const fs::path& group) {
  std::vector<fs::path> out;
  for (fs::path relative = group.relative_path(); !relative.empty(); relative = relative.parent_path())
    out.push_back(mount / relative);
  out.push_back(mount);
  return out;
}

bool HasController(const std::string& list, const std::string& name) {
  return ("," + list + ",").find("," + name + ",") != std::string::npos;
}

}  // namespace

CgroupLimits ReadCgroupLimits(const fs::path& root) {
  CgroupLimits limits;
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  // Each line: "id:controllers:path"; version 2 has id 0 and no controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) {
      for (const fs::path& mount : {mounts, mounts / "unified"}) {
        for (const fs::path& path : Ancestors(mount, group)) {
          ReadQuota(FirstLine(path / "cpu.max"), limits.cpus);
          ReadMemory(FirstLine(path / "memory.max"), limits.memory_bytes);
        }
      }
      continue;
    }
    for (const fs::path& path : Ancestors(mounts / controllers, group)) {
      if (HasController(controllers, "cpu"))
        ReadQuota(FirstLine(path / "cpu.cfs_quota_us") + " " + FirstLine(path / "cpu.cfs_period_us"),
                  limits.cpus);
      if (HasController(controllers, "memory"))
        ReadMemory(FirstLine(path / "memory.limit_in_bytes"), limits.memory_bytes);
    }
  }
  return limits;
}

}  // namespace celer
