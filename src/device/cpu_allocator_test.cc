#include "device/cpu_allocator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace celer {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

size_t Misalignment(const void* ptr, size_t unit) {
  return reinterpret_cast<uintptr_t>(ptr) % unit;
}

TEST(CpuAllocator, AlignsAndGivesUsableMemory) {
  CpuMemory memory;
  std::vector<void*> ptrs;
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{4097}, 2 * kMiB - 1,
                             2 * kMiB, 2 * kMiB + 1, 7 * kMiB + 13}) {
    const auto ptr = memory.Allocate(bytes);
    ASSERT_TRUE(ptr) << ptr.error().message();
    EXPECT_EQ(Misalignment(*ptr, bytes >= 2 * kMiB ? 2 * kMiB : 64), 0u) << bytes;
    std::memset(*ptr, 0xab, bytes);
    ptrs.push_back(*ptr);
  }
  for (void* const ptr : ptrs) memory.Free(ptr);
  EXPECT_EQ(memory.Stats().in_use, 0u);
}

TEST(CpuAllocator, CountsWhatIsInUse) {
  CpuMemory memory;
  void* const a = *memory.Allocate(100);
  void* const b = *memory.Allocate(3 * kMiB + 1);
  MemoryStats stats = memory.Stats();
  EXPECT_EQ(stats.requested, 100 + 3 * kMiB + 1);
  EXPECT_GE(stats.in_use, 128 + 3 * kMiB + 4096);
  EXPECT_EQ(stats.segments, 2u);
  EXPECT_EQ(stats.reserved, stats.in_use);
  EXPECT_EQ(stats.cached(), 0u);
  EXPECT_EQ(stats.fragmentation(), 0.0);
  const size_t peak = stats.in_use;
  memory.Free(b);
  memory.Free(a);
  stats = memory.Stats();
  EXPECT_EQ(stats.in_use, 0u);
  EXPECT_EQ(stats.peak_in_use, peak);
  EXPECT_EQ(stats.allocations, 2u);
  EXPECT_EQ(stats.frees, 2u);
}

TEST(CpuAllocator, ZeroBytesAreNull) {
  CpuMemory memory;
  const auto ptr = memory.Allocate(0);
  ASSERT_TRUE(ptr);
  EXPECT_EQ(*ptr, nullptr);
  memory.Free(nullptr);
  EXPECT_EQ(memory.Stats().frees, 0u);
}

TEST(CpuAllocator, ImpossibleSizesAreOneSentence) {
  CpuMemory memory;
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2, size_t{1} << 60}) {
    const auto ptr = memory.Allocate(bytes);
    ASSERT_FALSE(ptr) << bytes;
    EXPECT_EQ(ptr.error().code(), Error::Code::kOutOfMemory);
    EXPECT_TRUE(ptr.error().message().starts_with("cpu: cannot allocate ")) << ptr.error().message();
  }
  EXPECT_EQ(memory.Stats().failures, 4u);
  EXPECT_EQ(memory.Stats().allocations, 0u);
}

TEST(CpuAllocator, CountsWhatIsInUseAgainstItsLimit) {
  CpuMemory memory(4 * kMiB);
  void* const a = *memory.Allocate(3 * kMiB);
  const auto b = memory.Allocate(kMiB + 1);
  ASSERT_FALSE(b);
  EXPECT_NE(b.error().message().find("at most 4.0 MiB can be used, 3.0 MiB are in use in 1 blocks"),
            std::string::npos)
      << b.error().message();
  memory.Free(a);
  void* const c = *memory.Allocate(kMiB + 1);
  memory.Free(c);
}

TEST(CpuAllocatorDeathTest, MisuseIsCaught) {
  CpuMemory memory;
  void* const ptr = *memory.Allocate(10);
  memory.Free(ptr);
  EXPECT_DEATH(memory.Free(ptr), "blocks_.end");
  EXPECT_DEATH(
      {
        CpuMemory leaky;
        (void)leaky.Allocate(10);
      },
      "blocks_.size");
}

TEST(CpuAllocator, ManyThreads) {
  CpuMemory memory;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&memory, t] {
      for (size_t i = 1; i < 200; ++i) {
        auto* const bytes = static_cast<unsigned char*>(*memory.Allocate(i * 37));
        bytes[i * 37 - 1] = static_cast<unsigned char>(t);
        memory.Free(bytes);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.Stats().in_use, 0u);
  EXPECT_EQ(memory.Stats().allocations, 4u * 199);
}

TEST(CpuAllocator, IsTheAllocatorOfTheCpu) {
  const auto found = AllocatorFor(Device::Cpu());
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, &CpuAllocator());
  EXPECT_EQ((*found)->device(), Device::Cpu());
}

TEST(CpuAllocator, ADeviceThatIsNotThereIsAnError) {
  const auto found = AllocatorFor(Device::Cuda(4096));
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message().find("cuda:4096"), std::string::npos) << found.error().message();
}

TEST(HostMemory, IsPlausible) {
  EXPECT_GT(TotalHostBytes(), 64 * kMiB);
  EXPECT_GT(AvailableHostBytes(), 0u);
}

TEST(FormatBytes, ChoosesTheUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(kMiB - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16.0 EiB");
}

}  // namespace
}  // namespace celer
