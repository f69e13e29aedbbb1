// This machine's measured limits, kept in a file so that they are measured once.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/device.h"
#include "base/result.h"
#include "celer/limits.h"
#include "limits/probe/probe.h"

namespace celer {

struct MeasureOptions {
  bool allow_measure = true;  // false: NotFound, instead of seconds of measuring
  bool remeasure = false;     // even if the cache has an answer; the new one replaces it
  bool use_cache = true;      // false: neither read nor write it
  ProbeOptions probe;
  std::filesystem::path cache_dir;  // empty: DefaultCacheDir()
};

struct Measured {
  DeviceProbe probe;
  bool from_cache = false;
  std::filesystem::path cache_file;  // where it was found or saved; empty if neither
};

// From the cache, or by measuring. A corrupt or outdated cache is measured again; one that cannot be written
// is a warning. Results of CELER_FORCE'd probe loops never enter the cache.
Result<Measured> LoadOrMeasure(Device device, const MeasureOptions& options = {});

// For `--machine this`: without a device, the first GPU if there is one, else the CPU. With allow_measure
// false a machine that was not measured before is NotFound. `cores` of a CPU; 0: all.
Result<Machine> LoadOrMeasureThisMachine(bool allow_measure = true,
                                         std::optional<Device> device = std::nullopt, int cores = 0);

// $CELER_CACHE, else $XDG_CACHE_HOME/celer, else ~/.cache/celer; empty if none of these is set.
std::filesystem::path DefaultCacheDir();

// What the cache's file name is a hash of: CPU, cores, memory, instruction sets, GPUs, version of the probe.
std::string MachineDescription();

namespace internal {

// The cache file's content. Parse refuses anything that is not exactly what Print wrote for `description`.
struct MachineCache {
  std::string description;
  std::vector<DeviceProbe> devices;
};
std::string PrintMachineCache(const MachineCache& cache);
Result<MachineCache> ParseMachineCache(const std::string& text, const std::string& description);
std::string MachineCacheFileName(const std::string& description);  // "machine-0123456789abcdef.json"

}  // namespace internal
}  // namespace celer
