#include "device/cgroup.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace celer {
namespace {

class CgroupTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) /
            (std::string("celer_cgroup_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  std::filesystem::path root_;
};

TEST_F(CgroupTest, NothingThereMeansNoLimit) {
  const CgroupLimits limits = ReadCgroupLimits(root_);
  EXPECT_FALSE(limits.cpus);
  EXPECT_FALSE(limits.memory_bytes);
}

TEST_F(CgroupTest, Version2TakesTheTightestOfAllParents) {
  Write("proc/self/cgroup", "0::/a/b");
  Write("sys/fs/cgroup/a/b/cpu.max", "max 100000");
  Write("sys/fs/cgroup/a/cpu.max", "150000 100000");
  Write("sys/fs/cgroup/a/b/memory.max", "4096000");
  Write("sys/fs/cgroup/a/memory.max", "max");
  const CgroupLimits limits = ReadCgroupLimits(root_);
  EXPECT_DOUBLE_EQ(limits.cpus.value(), 1.5);
  EXPECT_EQ(limits.memory_bytes.value(), 4096000u);
}

TEST_F(CgroupTest, Version1) {
  Write("proc/self/cgroup", "5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:pids:/");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes",
        "1000000");  // a container sees its own group as the root
  Write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "50000");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000");
  const CgroupLimits limits = ReadCgroupLimits(root_);
  EXPECT_DOUBLE_EQ(limits.cpus.value(), 0.5);
  EXPECT_EQ(limits.memory_bytes.value(), 1000000u);
}

TEST_F(CgroupTest, Version1Unlimited) {
  Write("proc/self/cgroup", "5:memory:/\n3:cpu:/\n0::/");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  const CgroupLimits limits = ReadCgroupLimits(root_);
  EXPECT_FALSE(limits.cpus);
  EXPECT_FALSE(limits.memory_bytes);
}

TEST_F(CgroupTest, GarbageIsNoLimit) {
  Write("proc/self/cgroup", "nonsense\n0::\n:::\n");
  Write("sys/fs/cgroup/cpu.max", "fast");
  Write("sys/fs/cgroup/memory.max", "");
  const CgroupLimits limits = ReadCgroupLimits(root_);
  EXPECT_FALSE(limits.cpus);
  EXPECT_FALSE(limits.memory_bytes);
}

}  // namespace
}  // namespace celer
