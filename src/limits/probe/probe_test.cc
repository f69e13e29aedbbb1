#include "limits/probe/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "device/cpu_features.h"
#include "device/gpu/gpu_code.h"
#include "limits/probe/probe_variants.h"

namespace celer {
namespace {

// 64-byte aligned random words.
struct Words {
  explicit Words(size_t bytes) : data(new (std::align_val_t{64}) uint64_t[bytes / 8]), count(bytes / 8) {
    std::mt19937_64 random(count);
    for (size_t i = 0; i < count; ++i) data.get()[i] = random();
  }
  struct Free {
    void operator()(uint64_t* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<uint64_t, Free> data;
  size_t count;
};

constexpr size_t kSizes[] = {probe::kStreamBytes, 3 * probe::kStreamBytes, 37 * probe::kStreamBytes};

TEST(ProbeKernels, EveryReadVariantReadsEveryWord) {
  for (const auto& variant : probe::ReadVariants()) {
    if (!variant.RunsHere()) {
      std::printf("not run here: %s, %s\n", variant.name, WhyNotHere(variant.isa).c_str());
      continue;
    }
    for (const size_t bytes : kSizes) {
      Words words(bytes);
      uint64_t expected = 0;
      for (size_t i = 0; i < words.count; ++i) expected ^= words.data.get()[i];
      EXPECT_EQ(variant.run(words.data.get(), bytes), expected) << variant.name << " " << bytes;
      words.data.get()[words.count - 1] ^= 1;
      EXPECT_EQ(variant.run(words.data.get(), bytes), expected ^ 1) << variant.name << " " << bytes;
    }
  }
}

TEST(ProbeKernels, EveryCopyVariantCopies) {
  for (const auto& variant : probe::CopyVariants()) {
    if (!variant.RunsHere()) {
      std::printf("not run here: %s, %s\n", variant.name, WhyNotHere(variant.isa).c_str());
      continue;
    }
    for (const size_t bytes : kSizes) {
      const Words from(bytes);
      Words to(bytes + 64);
      const uint64_t guard = to.data.get()[bytes / 8];
      variant.run(to.data.get(), from.data.get(), bytes);
      EXPECT_EQ(std::memcmp(to.data.get(), from.data.get(), bytes), 0) << variant.name << " " << bytes;
      EXPECT_EQ(to.data.get()[bytes / 8], guard) << variant.name << " wrote beyond the end";
    }
  }
}

// Whether a compiler saw through one of them is probe_bench.cc's to say.
TEST(ProbeKernels, EveryPeakLoopCountsWhatItDoes) {
  for (const probe::PeakTable& table : probe::PeakTables()) {
    for (const auto& variant : table.variants) {
      if (!variant.RunsHere()) {
        std::printf("not run here: %s, %s\n", variant.name, WhyNotHere(variant.isa).c_str());
        continue;
      }
      const int64_t one = variant.run(1);
      EXPECT_GT(one, 0) << variant.name;
      EXPECT_EQ(variant.run(7), 7 * one) << variant.name;
    }
  }
}

TEST(Probe, SummarizesRepetitions) {
  std::vector<double> seconds;
  for (int i = 1; i <= 11; ++i) seconds.push_back(0.1 * i);
  std::shuffle(seconds.begin(), seconds.end(), std::mt19937(1));
  const Rate rate = internal::Summarize("read", 6.0, seconds);
  EXPECT_EQ(rate.repetitions, 11);
  EXPECT_DOUBLE_EQ(rate.best, 60);
  EXPECT_DOUBLE_EQ(rate.median, 10);
  EXPECT_DOUBLE_EQ(rate.p90, 30);  // faster than nine of ten
  EXPECT_DOUBLE_EQ(rate.p10, 6);
  EXPECT_DOUBLE_EQ(rate.spread(), 5);
  EXPECT_DOUBLE_EQ(internal::Summarize("x", 1.0, {0.5}).median, 2);
}

TEST(Probe, OperatorsAreNamedOnceAndHaveAChoice) {
  std::set<std::string> names;
  for (const OperatorInfo& op : ProbeOperators()) {
    EXPECT_TRUE(names.insert(op.name).second) << op.name;
    const auto runs = [](const VariantInfo& v) { return v.runs_here; };
    const auto chosen = [](const VariantInfo& v) { return v.chosen; };
    EXPECT_EQ(std::any_of(op.variants.begin(), op.variants.end(), runs),
              std::count_if(op.variants.begin(), op.variants.end(), chosen) == 1)
        << op.name;
  }
  EXPECT_TRUE(names.contains("probe_read") && names.contains("probe_copy") && names.contains("probe_f32"));
}

TEST(Probe, QuickCpuProbeFillsTheMachine) {
  ProbeOptions options;
  options.quick = true;
  int announced = 0;
  options.progress = [&announced](std::string_view) { ++announced; };
  const Result<DeviceProbe> probe = ProbeCpu(options);
  ASSERT_TRUE(probe) << probe.error().message();
  const Machine& machine = probe->machine;
  EXPECT_FALSE(machine.name.empty());
  EXPECT_TRUE(machine.source.starts_with("measured 2"));
  EXPECT_GT(machine.memory_bytes, 0);
  EXPECT_GT(machine.read_bytes_per_s, 0);
  EXPECT_TRUE(std::isfinite(machine.read_bytes_per_s));
  EXPECT_GT(machine.read_bytes_per_s_one, 0);
  EXPECT_GT(machine.copy_bytes_per_s, 0);
  EXPECT_TRUE(machine.flops.contains("f32"));
  EXPECT_GE(announced, static_cast<int>(probe->rates.size()));
  for (const Rate& rate : probe->rates) {
    EXPECT_GE(rate.best, rate.median) << rate.what;
    EXPECT_GE(rate.median, rate.p10) << rate.what;
    EXPECT_GE(rate.repetitions, 1) << rate.what;  // few on a busy machine
    EXPECT_EQ(rate.cores, rate.what == "read_one" ? 1 : HostCpu().usable_cores) << rate.what;
    EXPECT_FALSE(rate.variant.empty()) << rate.what;
  }
  ASSERT_NE(probe->Find("read"), nullptr);
  EXPECT_EQ(probe->Find("fp4"), nullptr);
}

TEST(Probe, GpuThatIsNotThereIsOneSentence) {
  const int count = static_cast<int>(ListGpus().size());
  const Status status = CheckGpu(count);
  ASSERT_FALSE(status);
  EXPECT_TRUE(status.error().message().starts_with("cuda:" + std::to_string(count) + ": "));
  EXPECT_FALSE(ProbeGpu(count));
  EXPECT_FALSE(CheckGpu(-1));
}

TEST(Probe, QuickGpuProbeFillsTheMachine) {
  if (const Status status = CheckGpu(0); !status) GTEST_SKIP() << status.error().message();
  ProbeOptions options;
  options.quick = true;
  const Result<DeviceProbe> probe = ProbeGpu(0, options);
  ASSERT_TRUE(probe) << probe.error().message();
  EXPECT_GT(probe->machine.read_bytes_per_s, 0);
  EXPECT_GT(probe->machine.copy_bytes_per_s, 0);
  EXPECT_TRUE(probe->machine.flops.contains("f16"));
  EXPECT_TRUE(probe->machine.flops.contains("f32"));
  for (const Rate& rate : probe->rates) EXPECT_GE(rate.repetitions, 10) << rate.what;
}

}  // namespace
}  // namespace celer
