// What a container may use: the limits of this process's control groups (version 1 and 2).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace celer {

struct CgroupLimits {
  std::optional<double> cpus;            // quota / period; nullopt when unlimited
  std::optional<uint64_t> memory_bytes;  // nullopt when unlimited
};

// The tightest limit between our group and the root of the hierarchy. `root` stands for "/" in tests.
CgroupLimits ReadCgroupLimits(const std::filesystem::path& root = "/");

}  // namespace celer
