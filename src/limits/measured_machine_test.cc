#include "limits/measured_machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "device/cpu_features.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using internal::MachineCache;
using internal::MachineCacheFileName;
using internal::ParseMachineCache;
using internal::PrintMachineCache;

MachineCache Example() {
  DeviceProbe cpu;
  cpu.machine = {
      "Some CPU, 2 cores", "measured 2026-01-02", 16e9, 50e9, 30e9, 60e9, {{"f32", 1e11}, {"int8", 4e11}}};
  cpu.clock_hz = 2.6e9;
  cpu.seconds = 5.5;
  cpu.rates = {{"read", "arm_neon", 2, 40, 50e9, 49e9, 48e9, 49.5e9}};
  DeviceProbe gpu;
  gpu.device = Device::Cuda(1);
  gpu.machine = {"Some GPU", "measured 2026-01-02", 80e9, 3e12, 0, 2.9e12, {}};
  gpu.quick = true;
  return {"a machine", {cpu, gpu}};
}

class ScratchDir {
 public:
  ScratchDir() : path_(fs::temp_directory_path() / ("celer_measured_" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~ScratchDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void Write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(MeasuredMachine, CacheRoundTrips) {
  const MachineCache before = Example();
  const std::string text = PrintMachineCache(before);
  const Result<MachineCache> after = ParseMachineCache(text, "a machine");
  ASSERT_TRUE(after) << after.error().message();
  ASSERT_EQ(after->devices.size(), 2u);
  EXPECT_EQ(PrintMachineCache(*after), text);
  EXPECT_EQ(after->devices[0].machine.flops, before.devices[0].machine.flops);
  EXPECT_EQ(after->devices[0].rates[0].variant, "arm_neon");
  EXPECT_EQ(after->devices[1].device, Device::Cuda(1));
  EXPECT_TRUE(after->devices[1].quick);
}

TEST(MeasuredMachine, CorruptCachesAreRefused) {
  const std::string good = PrintMachineCache(Example());
  const auto replaced = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::string bad[] = {
      "",
      "{",
      "null",
      "[]",
      "{}",
      "7",
      good.substr(0, good.size() / 2),
      replaced("\"celer_probe\": 6", "\"celer_probe\": 0"),
      replaced("\"celer_probe\": 6", "\"celer_probe\": 1.5"),
      replaced("\"celer_probe\": 6", "\"celer_probe\": 1e300"),
      replaced("\"a machine\"", "\"another machine\""),
      replaced("\"a machine\"", "3"),
      replaced("\"device\": \"cpu\"", "\"device\": \"tpu\""),
      replaced("\"device\": \"cpu\"", "\"device\": null"),
      replaced("\"read_bytes_per_s\": 50000000000.0", "\"read_bytes_per_s\": -1"),
      replaced("\"read_bytes_per_s\": 50000000000.0", "\"read_bytes_per_s\": 0"),
      replaced("\"read_bytes_per_s\": 50000000000.0", "\"read_bytes_per_s\": 1e999"),
      replaced("\"read_bytes_per_s\": 50000000000.0", "\"read_bytes_per_s\": \"fast\""),
      replaced("\"f32\": 100000000000.0", "\"f32\": []"),
      replaced("\"cores\": 2", "\"cores\": 5e9"),
      replaced("\"rates\": [\n    {", "\"rates\": [\n    7, {"),
      replaced("\"devices\": [", "\"devices\": [null, "),
  };
  for (const std::string& text : bad) EXPECT_FALSE(ParseMachineCache(text, "a machine")) << text;
}

TEST(MeasuredMachine, FileNameFollowsTheDescription) {
  EXPECT_EQ(MachineCacheFileName("x"), MachineCacheFileName("x"));
  EXPECT_NE(MachineCacheFileName("x"), MachineCacheFileName("y"));
  EXPECT_EQ(MachineCacheFileName("x").size(), std::string("machine-0123456789abcdef.json").size());
  EXPECT_EQ(MachineDescription(), MachineDescription());
}

// Two threads do not have the bandwidth of 96 cores.
TEST(MeasuredMachine, EveryNumberOfCoresIsMeasuredByItself) {
  const ScratchDir dir;
  MeasureOptions options;
  options.probe.quick = true;
  options.cache_dir = dir.path();
  const int all = HostCpu().usable_cores;
  const Result<Measured> whole = LoadOrMeasure(Device::Cpu(), options);
  options.probe.cores = 1;
  const Result<Measured> one = LoadOrMeasure(Device::Cpu(), options);
  ASSERT_TRUE(whole && one);
  EXPECT_EQ(whole->probe.cores, all);
  EXPECT_EQ(one->probe.cores, 1);
  EXPECT_TRUE(one->probe.machine.name.ends_with(", 1 core")) << one->probe.machine.name;
  EXPECT_EQ(one->from_cache, all == 1);
  if (all > 1) {
    EXPECT_LT(one->probe.machine.flops.at("f32"), 0.8 * whole->probe.machine.flops.at("f32"));
  }
  // Both are remembered, and more cores than there are is all of them.
  EXPECT_TRUE(LoadOrMeasure(Device::Cpu(), options)->from_cache);
  options.probe.cores = all + 7;
  const Result<Measured> more = LoadOrMeasure(Device::Cpu(), options);
  EXPECT_TRUE(more->from_cache);
  EXPECT_EQ(more->probe.machine.read_bytes_per_s, whole->probe.machine.read_bytes_per_s);
}

TEST(MeasuredMachine, MeasuresOnceThenReadsTheCache) {
  const ScratchDir dir;
  MeasureOptions options;
  options.probe.quick = true;
  options.cache_dir = dir.path() / "deeper" / "still";
  options.allow_measure = false;
  const Result<Measured> nothing = LoadOrMeasure(Device::Cpu(), options);
  ASSERT_FALSE(nothing);
  EXPECT_NE(nothing.error().message().find("run celer probe"), std::string::npos);

  options.allow_measure = true;
  const Result<Measured> first = LoadOrMeasure(Device::Cpu(), options);
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_FALSE(first->from_cache);
  ASSERT_TRUE(fs::exists(first->cache_file)) << first->cache_file;

  options.allow_measure = false;
  const Result<Measured> second = LoadOrMeasure(Device::Cpu(), options);
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_TRUE(second->from_cache);
  EXPECT_EQ(second->probe.machine.read_bytes_per_s, first->probe.machine.read_bytes_per_s);

  options.probe.quick = false;  // a quick result does not answer for a full one
  EXPECT_FALSE(LoadOrMeasure(Device::Cpu(), options));
  options.probe.quick = true;
  options.use_cache = false;
  EXPECT_FALSE(LoadOrMeasure(Device::Cpu(), options));

  Write(first->cache_file, "{ not json");
  options.use_cache = true;
  EXPECT_FALSE(LoadOrMeasure(Device::Cpu(), options));
  options.allow_measure = true;
  const Result<Measured> again = LoadOrMeasure(Device::Cpu(), options);
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_FALSE(again->from_cache);
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(options.cache_dir)) files += entry.is_regular_file();
  EXPECT_EQ(files, 1u) << "a draft was left behind";
}

TEST(MeasuredMachine, UnwritableCacheIsNoFailure) {
  const ScratchDir dir;
  Write(dir.path() / "file", "");
  MeasureOptions options;
  options.probe.quick = true;
  options.cache_dir = dir.path() / "file" / "below";  // cannot be created, not even by root
  const Result<Measured> measured = LoadOrMeasure(Device::Cpu(), options);
  ASSERT_TRUE(measured) << measured.error().message();
  EXPECT_TRUE(measured->cache_file.empty());
}

TEST(MeasuredMachine, CacheDirFollowsTheEnvironment) {
  const auto set = [](const char* name, const char* value) {
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  };
  const char* names[] = {"CELER_CACHE", "XDG_CACHE_HOME", "HOME"};
  std::optional<std::string> before[3];
  for (int i = 0; i < 3; ++i)
    if (const char* value = std::getenv(names[i])) before[i] = value;
  set("CELER_CACHE", "/a");
  set("XDG_CACHE_HOME", "/b");
  set("HOME", "/c");
  EXPECT_EQ(DefaultCacheDir(), "/a");
  set("CELER_CACHE", "");
  EXPECT_EQ(DefaultCacheDir(), "/b/celer");
  set("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(DefaultCacheDir(), "/c/.cache/celer");
  set("HOME", nullptr);
  EXPECT_EQ(DefaultCacheDir(), "");
  for (int i = 0; i < 3; ++i) set(names[i], before[i] ? before[i]->c_str() : nullptr);
}

TEST(MeasuredMachine, MissingGpuIsOneSentence) {
  const int count = CudaDeviceCount();
  const Result<Measured> measured = LoadOrMeasure(Device::Cuda(count));
  ASSERT_FALSE(measured);
  EXPECT_TRUE(measured.error().message().starts_with("cuda:" + std::to_string(count)));
}

}  // namespace
}  // namespace celer
