#include "device/cpu_features.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#include "device/cgroup.h"

namespace celer {
namespace internal {
namespace {

constexpr int kMaxCpu = 1 << 16;

}  // namespace

int64_t ParseCacheSize(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value <= 0 || value > (int64_t{1} << 40)) return 0;
  const char unit = end == text.data() + text.size() ? '\0' : *end;
  return unit == 'K' ? value << 10 : unit == 'M' ? value << 20 : value;
}

// Parts from Arm's and the vendors' technical reference manuals (MIDR_EL1), the cores servers and boards use.
std::string ArmModelName(uint32_t implementer, uint32_t part) {
  struct Row {
    uint32_t implementer, part;
    const char* name;
  };
  static constexpr Row kRows[] = {
      {0x41, 0xd03, "Cortex-A53"},   {0x41, 0xd05, "Cortex-A55"},  {0x41, 0xd07, "Cortex-A57"},
      {0x41, 0xd08, "Cortex-A72"},   {0x41, 0xd0b, "Cortex-A76"},  {0x41, 0xd0c, "Neoverse-N1"},
      {0x41, 0xd40, "Neoverse-V1"},  {0x41, 0xd41, "Cortex-A78"},  {0x41, 0xd44, "Cortex-X1"},
      {0x41, 0xd49, "Neoverse-N2"},  {0x41, 0xd4f, "Neoverse-V2"}, {0x41, 0xd84, "Neoverse-V3"},
      {0x41, 0xd8e, "Neoverse-N3"},  {0xc0, 0xac3, "Ampere-1"},    {0xc0, 0xac4, "Ampere-1A"},
      {0x61, 0x022, "Apple M1"},     {0x61, 0x032, "Apple M2"},    {0x48, 0xd01, "Kunpeng-920"},
      {0x46, 0x001, "Fujitsu A64FX"}};
  for (const Row& row : kRows)
    if (row.implementer == implementer && row.part == part) return row.name;
  std::ostringstream out;
  out << std::hex << "Arm CPU, implementer 0x" << implementer << ", part 0x" << part;
  return out.str();
}

}  // namespace internal

namespace {

using internal::ArmModelName;
using internal::ParseCacheSize;

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The value of "key<spaces>: value" in /proc/cpuinfo or /proc/meminfo; "" if there is no such line.
std::string ProcField(const char* path, std::string_view key) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    while (!name.empty() && (name.back() == ' ' || name.back() == '\t')) name.pop_back();
    if (name != key) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

std::vector<int> AllowedCpus() {
  // The mask grows until the kernel accepts it: machines with more than 1024 CPUs exist.
  for (int size = 1024; size <= internal::kMaxCpu; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    CPU_ZERO_S(bytes, set);
    std::vector<int> cpus;
    if (sched_getaffinity(0, bytes, set) == 0)
      for (int cpu = 0; cpu < size; ++cpu)
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    CPU_FREE(set);
    if (!cpus.empty()) return cpus;
  }
  return {0};
}

void FindTopology(CpuFeatures& cpu) {
  const std::vector<int> allowed = AllowedCpus();
  cpu.logical_cores = static_cast<int>(allowed.size());

  std::set<std::string> seen_cores;
  std::set<std::pair<int, std::string>> seen_caches;  // level, the CPUs that share it
  int last_level = 0;
  for (const int id : allowed) {
    const std::string base = "/sys/devices/system/cpu/cpu" + std::to_string(id) + "/";
    std::string siblings = FirstLine(base + "topology/thread_siblings_list");
    if (siblings.empty()) siblings = std::to_string(id);
    if (seen_cores.insert(siblings).second) cpu.core_cpus.push_back(id);

    for (int index = 0; index < 8; ++index) {
      const std::string cache = base + "cache/index" + std::to_string(index) + "/";
      const std::string type = FirstLine(cache + "type");
      if (type.empty()) break;
      if (type == "Instruction") continue;
      const int64_t bytes = ParseCacheSize(FirstLine(cache + "size"));
      const int64_t level = ParseCacheSize(FirstLine(cache + "level"));  // a plain number, too
      if (level == 1 && cpu.l1d_bytes == 0) cpu.l1d_bytes = bytes;
      if (level == 2 && cpu.l2_bytes == 0) cpu.l2_bytes = bytes;
      if (level == 3 && cpu.l3_bytes == 0) cpu.l3_bytes = bytes;
      const int64_t line = ParseCacheSize(FirstLine(cache + "coherency_line_size"));
      if (line > 0) cpu.cache_line = line;
      std::string shared = FirstLine(cache + "shared_cpu_list");
      if (shared.empty()) shared = std::to_string(id);
      if (!seen_caches.emplace(static_cast<int>(level), shared).second) continue;
      if (level > last_level) {
        last_level = static_cast<int>(level);
        cpu.last_level_bytes = 0;
      }
      if (level == last_level) cpu.last_level_bytes += bytes;
    }
  }
  cpu.physical_cores = static_cast<int>(cpu.core_cpus.size());
  cpu.usable_cores = cpu.physical_cores;
  const CgroupLimits granted = ReadCgroupLimits();
  if (granted.cpus)  // rounded down: a throttled thread makes all the others wait
    cpu.usable_cores = static_cast<int>(std::clamp(std::floor(*granted.cpus), 1.0, 1.0 * cpu.physical_cores));
  cpu.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  if (granted.memory_bytes && *granted.memory_bytes < static_cast<uint64_t>(cpu.memory_bytes))
    cpu.memory_bytes = static_cast<int64_t>(*granted.memory_bytes);

  // Some virtual machines hide sysfs' cache folders; the C library may still know.
  if (cpu.l1d_bytes == 0) cpu.l1d_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL1_DCACHE_SIZE));
  if (cpu.l2_bytes == 0) cpu.l2_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL2_CACHE_SIZE));
  if (cpu.l3_bytes == 0) cpu.l3_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  cpu.last_level_bytes = std::max({cpu.last_level_bytes, cpu.l3_bytes, cpu.l2_bytes, cpu.l1d_bytes});
}

#if defined(__aarch64__)

// Bits of AT_HWCAP and AT_HWCAP2 (Linux, Documentation/arm64/elf_hwcaps). Written out because the headers of
// an older C library lack the newer names.
constexpr unsigned long kHwcapAsimd = 1ul << 1;
constexpr unsigned long kHwcapAsimdHp = 1ul << 10;
constexpr unsigned long kHwcapAsimdDp = 1ul << 20;
constexpr unsigned long kHwcapSve = 1ul << 22;
constexpr unsigned long kHwcapAsimdFhm = 1ul << 23;
constexpr unsigned long kHwcap2I8mm = 1ul << 13;
constexpr unsigned long kHwcap2Bf16 = 1ul << 14;

void FindIsa(CpuFeatures& cpu) {
  const unsigned long hwcap = getauxval(AT_HWCAP);
  const unsigned long hwcap2 = getauxval(AT_HWCAP2);
  cpu.neon = hwcap & kHwcapAsimd;
  cpu.fp16 = hwcap & kHwcapAsimdHp;
  cpu.fhm = hwcap & kHwcapAsimdFhm;
  cpu.dotprod = hwcap & kHwcapAsimdDp;
  cpu.sve = hwcap & kHwcapSve;
  cpu.i8mm = hwcap2 & kHwcap2I8mm;
  cpu.bf16 = hwcap2 & kHwcap2Bf16;
}

std::string ModelName() {
  const std::string implementer = ProcField("/proc/cpuinfo", "CPU implementer");
  const std::string part = ProcField("/proc/cpuinfo", "CPU part");
  const auto hex = [](const std::string& text) {
    return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 16));
  };
  if (!implementer.empty() && !part.empty()) return ArmModelName(hex(implementer), hex(part));
  return "Arm CPU";
}

#elif defined(__x86_64__)

struct Regs {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Regs Cpuid(unsigned leaf, unsigned subleaf = 0) {
  Regs r;
  if (__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d) == 0) return {};
  return r;
}

// The register sets that the operating system saves and restores. Only valid if OSXSAVE is set.
uint64_t Xcr0() {
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Linux hands out the 8 KB of tile registers only to a process that asks (arch_prctl, since 5.16).
bool RequestAmx() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

void FindIsa(CpuFeatures& cpu) {
  const auto bit = [](unsigned word, int n) { return ((word >> n) & 1u) != 0; };
  const Regs one = Cpuid(1);
  if (!bit(one.c, 27)) return;  // no OSXSAVE: the system saves nothing beyond SSE
  const uint64_t saved = Xcr0();
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  if ((saved & kYmm) != kYmm) return;
  const Regs seven = Cpuid(7), seven_one = Cpuid(7, 1);
  cpu.fma = bit(one.c, 12);
  cpu.f16c = bit(one.c, 29);
  cpu.avx2 = bit(one.c, 28) && bit(seven.b, 5);
  cpu.avxvnni = bit(seven_one.a, 4);

  if ((saved & kZmm) == kZmm && bit(seven.b, 16)) {
    cpu.avx512f = true;
    cpu.avx512dq = bit(seven.b, 17);
    cpu.avx512bw = bit(seven.b, 30);
    cpu.avx512vl = bit(seven.b, 31);
    cpu.avx512vnni = bit(seven.c, 11);
    cpu.avx512fp16 = bit(seven.d, 23);
    cpu.avx512bf16 = bit(seven_one.a, 5);
  }
  if ((saved & kTiles) == kTiles && bit(seven.d, 24) && RequestAmx()) {
    cpu.amx_tile = true;
    cpu.amx_bf16 = bit(seven.d, 22);
    cpu.amx_int8 = bit(seven.d, 25);
  }
}

std::string ModelName() {
  std::string name = ProcField("/proc/cpuinfo", "model name");
  return name.empty() ? "x86-64 CPU" : name;
}

#else

void FindIsa(CpuFeatures&) {}
std::string ModelName() {
  return "unknown CPU";
}

#endif

CpuFeatures Detect() {
  CpuFeatures cpu;
  cpu.model = ModelName();
  FindTopology(cpu);
  FindIsa(cpu);
  return cpu;
}

}  // namespace

std::string CpuFeatures::FlagList() const {
  const std::pair<const char*, bool> flags[] = {
      {"neon", neon},
      {"fp16", fp16},
      {"fhm", fhm},
      {"dotprod", dotprod},
      {"i8mm", i8mm},
      {"bf16", bf16},
      {"sve", sve},
      {"avx2", avx2},
      {"fma", fma},
      {"f16c", f16c},
      {"avxvnni", avxvnni},
      {"avx512f", avx512f},
      {"avx512bw", avx512bw},
      {"avx512vl", avx512vl},
      {"avx512dq", avx512dq},
      {"avx512vnni", avx512vnni},
      {"avx512bf16", avx512bf16},
      {"avx512fp16", avx512fp16},
      {"amx_tile", amx_tile},
      {"amx_int8", amx_int8},
      {"amx_bf16", amx_bf16},
  };
  std::string list;
  for (const auto& [name, set] : flags)
    if (set) list += (list.empty() ? "" : " ") + std::string(name);
  return list;
}

const CpuFeatures& HostCpu() {
  static const CpuFeatures cpu = Detect();
  return cpu;
}

}  // namespace celer
