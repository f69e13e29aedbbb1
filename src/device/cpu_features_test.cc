#include "device/cpu_features.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

namespace celer {
namespace {

using internal::ArmModelName;
using internal::ParseCacheSize;

TEST(CpuFeatures, ParsesCacheSizes) {
  EXPECT_EQ(ParseCacheSize("64K"), 65536);
  EXPECT_EQ(ParseCacheSize("32M"), 32 << 20);
  EXPECT_EQ(ParseCacheSize("128"), 128);
  EXPECT_EQ(ParseCacheSize(""), 0);
  EXPECT_EQ(ParseCacheSize("-4K"), 0);
  EXPECT_EQ(ParseCacheSize("99999999999999K"), 0);
}

TEST(CpuFeatures, NamesArmCores) {
  EXPECT_EQ(ArmModelName(0x41, 0xd40), "Neoverse-V1");
  EXPECT_EQ(ArmModelName(0x41, 0xfff), "Arm CPU, implementer 0x41, part 0xfff");
}

TEST(CpuFeatures, HostIsConsistent) {
  const CpuFeatures& cpu = HostCpu();
  EXPECT_FALSE(cpu.model.empty());
  EXPECT_GE(cpu.physical_cores, 1);
  EXPECT_GE(cpu.logical_cores, cpu.physical_cores);
  EXPECT_GE(cpu.physical_cores, cpu.usable_cores);
  EXPECT_GE(cpu.usable_cores, 1);
  EXPECT_EQ(cpu.core_cpus.size(), static_cast<size_t>(cpu.physical_cores));
  EXPECT_EQ(std::set<int>(cpu.core_cpus.begin(), cpu.core_cpus.end()).size(), cpu.core_cpus.size());
  EXPECT_GT(cpu.memory_bytes, int64_t{16} << 20);
  EXPECT_GE(cpu.last_level_bytes, cpu.l2_bytes);
  EXPECT_EQ(cpu.cache_line & (cpu.cache_line - 1), 0) << cpu.cache_line;
  EXPECT_EQ(&HostCpu(), &cpu);
}

// The kernel's own list of flags is a second opinion. It lists what the kernel supports, as we require.
TEST(CpuFeatures, AgreesWithProcCpuinfo) {
  std::ifstream in("/proc/cpuinfo");
  std::set<std::string> words;
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream split(line.substr(line.find(':') + 1));
    for (std::string word; split >> word;) words.insert(word);
    break;
  }
  if (words.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags here";
  const CpuFeatures& cpu = HostCpu();
#if defined(__aarch64__)
  EXPECT_EQ(cpu.neon, words.contains("asimd"));
  EXPECT_EQ(cpu.fp16, words.contains("asimdhp"));
  EXPECT_EQ(cpu.fhm, words.contains("asimdfhm"));
  EXPECT_EQ(cpu.dotprod, words.contains("asimddp"));
  EXPECT_EQ(cpu.i8mm, words.contains("i8mm"));
  EXPECT_EQ(cpu.bf16, words.contains("bf16"));
  EXPECT_EQ(cpu.sve, words.contains("sve"));
#elif defined(__x86_64__)
  EXPECT_EQ(cpu.avx2, words.contains("avx2"));
  EXPECT_EQ(cpu.fma, words.contains("fma"));
  EXPECT_EQ(cpu.f16c, words.contains("f16c"));
  EXPECT_GE(cpu.avxvnni, words.contains("avx_vnni"));  // Linux before 5.12 does not name it
  EXPECT_EQ(cpu.avx512f, words.contains("avx512f"));
  EXPECT_EQ(cpu.avx512vnni, words.contains("avx512_vnni"));
  EXPECT_LE(cpu.amx_tile, words.contains("amx_tile"));  // permission may be refused
#endif
  EXPECT_EQ(cpu.FlagList().find("  "), std::string::npos);
  EXPECT_EQ(cpu.FlagList().find("avx2") != std::string::npos, cpu.avx2);
}

}  // namespace
}  // namespace celer
