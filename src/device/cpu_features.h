// What the CPU we run on can do. Found once, at the first call of HostCpu(); every later call is a load. Make
// that first call before any thread is pinned: the cores are those of the calling thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace celer {

struct CpuFeatures {
  std::string model;           // "Neoverse-V1", "AMD Ryzen 9 7950X 16-Core Processor"; never empty
  int logical_cores = 1;       // hardware threads this process may run on (its affinity mask)
  int physical_cores = 1;      // distinct cores among them
  int usable_cores = 1;        // physical cores, or fewer where a cgroup grants less CPU time
  std::vector<int> core_cpus;  // one logical CPU number per physical core, to pin threads to

  int64_t memory_bytes = 0;  // RAM, or less where a cgroup grants less
  int64_t cache_line = 64;
  int64_t l1d_bytes = 0;         // of one core; 0 where the system does not say
  int64_t l2_bytes = 0;          // of one core or cluster
  int64_t l3_bytes = 0;          // one instance
  int64_t last_level_bytes = 0;  // all instances of the last level that our cores can reach, added up

  // aarch64
  bool neon = false, fp16 = false, fhm = false, dotprod = false, i8mm = false, bf16 = false, sve = false;

  // x86-64. True only if the operating system also saves the registers (and, for AMX, grants their use).
  bool avx2 = false, fma = false, f16c = false, avxvnni = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
  bool avx512vnni = false, avx512bf16 = false, avx512fp16 = false;
  bool amx_tile = false, amx_int8 = false, amx_bf16 = false;

  // The names of the flags above that are set: "neon fp16 dotprod". For people and for cache keys.
  std::string FlagList() const;
};

const CpuFeatures& HostCpu();

namespace internal {

// The parsers behind HostCpu(), for tests.
int64_t ParseCacheSize(const std::string& text);                // "32768K" -> 33554432; 0 if it is no size
std::string ArmModelName(uint32_t implementer, uint32_t part);  // as in /proc/cpuinfo

}  // namespace internal
}  // namespace celer
