#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "device/cuda_allocator.h"
#include "device/stream.h"

namespace celer {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class CudaAllocatorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device can be used here";
    pool_ = *CudaPool(0);
    pool_->Trim();
  }
  void TearDown() override {
    if (pool_ == nullptr) return;
    cudaDeviceSynchronize();
    pool_->Trim();
    EXPECT_EQ(pool_->Stats().reserved, 0u);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // a failure of ours must not show up in somebody's launch
  }
  CachingPool* pool_ = nullptr;
};

// Keeps a stream busy until it is told to go on.
class Gate {
 public:
  explicit Gate(const Stream& stream) {
    EXPECT_EQ(cudaLaunchHostFunc(stream.get(), Wait, this), cudaSuccess);
  }
  ~Gate() { Open(); }
  void Open() { open_.store(true); }

 private:
  static void Wait(void* self) {
    while (!static_cast<Gate*>(self)->open_.load()) continue;
  }
  std::atomic<bool> open_{false};
};

TEST_F(CudaAllocatorTest, CachedMemoryGoesBackToTheDriver) {
  const auto free_now = [] {
    size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return free;
  };
  const size_t before = free_now();
  static_cast<void>(*Buffer::Allocate(**AllocatorFor(Device::Cuda(0)), 512 * kMiB));
  EXPECT_GE(pool_->Stats().reserved, 512 * kMiB);  // freed, and kept
  EXPECT_GE(ReleaseCachedMemory(), 512 * kMiB);
  EXPECT_EQ(pool_->Stats().reserved, 0u);
  EXPECT_GT(free_now() + 64 * kMiB, before);
}

TEST_F(CudaAllocatorTest, MemoryHoldsWhatIsWritten) {
  Buffer buffer = *Buffer::Allocate(**AllocatorFor(Device::Cuda(0)), 3 * kMiB + 5);
  EXPECT_EQ(buffer.device(), Device::Cuda(0));
  std::vector<std::byte> there(buffer.size()), back(buffer.size());
  for (size_t i = 0; i < there.size(); ++i) there[i] = static_cast<std::byte>(i * 31);
  ASSERT_EQ(cudaMemcpy(buffer.data(), there.data(), there.size(), cudaMemcpyDefault), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(back.data(), buffer.data(), back.size(), cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(there, back);
}

TEST_F(CudaAllocatorTest, TheSecondRequestDoesNotReachTheDriver) {
  void* const first = *pool_->Allocate(100 * kMiB);
  const uint64_t calls = pool_->Stats().segment_allocations;
  pool_->Free(first);
  EXPECT_EQ(*pool_->Allocate(99 * kMiB), first);
  EXPECT_EQ(pool_->Stats().segment_allocations, calls);
  pool_->Free(first);
}

TEST_F(CudaAllocatorTest, WhatAnotherStreamStillUsesIsNotReused) {
  const Stream home = *Stream::Create(), other = *Stream::Create();
  void* const a = *pool_->Allocate(kMiB, home.id());
  {
    Gate gate(other);
    ASSERT_EQ(cudaMemsetAsync(a, 1, kMiB, other.get()), cudaSuccess);
    pool_->RecordStream(a, other.id());
    pool_->Free(a);
    EXPECT_EQ(pool_->Stats().pending, kMiB);
    void* const b = *pool_->Allocate(kMiB, home.id());
    EXPECT_NE(b, a);
    gate.Open();
    ASSERT_TRUE(other.Synchronize());
    EXPECT_EQ(*pool_->Allocate(kMiB, home.id()), a);
    pool_->Free(b);
  }
  pool_->Free(a);
}

TEST_F(CudaAllocatorTest, ASynchronizedStreamSharesItsMemory) {
  const Stream one = *Stream::Create(), two = *Stream::Create(0, true);
  void* const a = *pool_->Allocate(30 * kMiB, one.id());
  pool_->Free(a);
  void* const b = *pool_->Allocate(30 * kMiB, two.id());
  EXPECT_NE(b, a);
  ASSERT_TRUE(one.Synchronize());
  pool_->StreamSynchronized(one.id());
  EXPECT_EQ(*pool_->Allocate(30 * kMiB, two.id()), a);
  pool_->Free(a);
  pool_->Free(b);
}

TEST_F(CudaAllocatorTest, TheCacheIsGivenBackWhenTheDeviceIsFull) {
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  const size_t part = free / 5 * 2 / kMiB * kMiB;
  void* const a = *pool_->Allocate(part);
  void* const b = *pool_->Allocate(part);
  pool_->Free(a);
  pool_->Free(b);
  const auto c = pool_->Allocate(part + part / 2);  // needs both segments back
  ASSERT_TRUE(c) << c.error().message();
  EXPECT_EQ(pool_->Stats().segments, 1u);
  const auto failed = pool_->Allocate(part * 2);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Error::Code::kOutOfMemory);
  EXPECT_TRUE(failed.error().message().starts_with("cuda:0: cannot allocate ")) << failed.error().message();
  pool_->Free(*c);
}

TEST_F(CudaAllocatorTest, ImpossibleSizes) {
  EXPECT_FALSE(pool_->Allocate(SIZE_MAX));
  EXPECT_FALSE(pool_->Allocate(size_t{1} << 50));
}

TEST_F(CudaAllocatorTest, AllocatingDuringACaptureDoesNotSpoilIt) {
  const Stream stream = *Stream::Create();
  void* const ours = *pool_->Allocate(kMiB, stream.id());
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  void* const fresh = *pool_->Allocate(64 * kMiB);
  ASSERT_EQ(cudaMemsetAsync(ours, 0, kMiB, stream.get()), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  pool_->Free(fresh);
  pool_->Free(ours);
}

TEST_F(CudaAllocatorTest, PinnedMemoryWaitsForItsCopies) {
  const Stream stream = *Stream::Create();
  Buffer device = *Buffer::Allocate(**CudaAllocator(0), kMiB);
  void* const host = *PinnedAllocator().Allocate(kMiB);
  EXPECT_EQ(PinnedAllocator().device(), Device::Cpu());
  std::memset(host, 7, kMiB);
  {
    Gate gate(stream);
    ASSERT_EQ(cudaMemcpyAsync(device.data(), host, kMiB, cudaMemcpyHostToDevice, stream.get()), cudaSuccess);
    PinnedPool().RecordStream(host, stream.id());
    PinnedAllocator().Free(host);
    void* const second = *PinnedAllocator().Allocate(kMiB);
    EXPECT_NE(second, host);
    PinnedAllocator().Free(second);
    gate.Open();
    ASSERT_TRUE(stream.Synchronize());
  }
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, host), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_GT(PinnedPool().Trim(), 0u);
  EXPECT_EQ(PinnedPool().Stats().reserved, 0u);
}

TEST_F(CudaAllocatorTest, StreamsAndEventsKnowWhenTheyAreDone) {
  const Stream stream = *Stream::Create();
  Event before = *Event::Create(0, true), after = *Event::Create(0, true);
  ASSERT_TRUE(before.Record(stream));
  {
    Gate gate(stream);
    ASSERT_TRUE(after.Record(stream));
    EXPECT_FALSE(*stream.Idle());
    EXPECT_FALSE(*after.Done());
    gate.Open();
    ASSERT_TRUE(after.Synchronize());
  }
  EXPECT_TRUE(*after.Done());
  EXPECT_TRUE(*stream.Idle());
  EXPECT_GE(*after.MillisecondsSince(before), 0.0f);
  const Stream second = *Stream::Create();
  EXPECT_TRUE(second.WaitFor(after));
  EXPECT_TRUE(second.Synchronize());
}

TEST(CudaAllocator, ADeviceThatIsNotThereIsAnError) {
  const auto pool = CudaPool(4096);
  ASSERT_FALSE(pool);
  EXPECT_TRUE(pool.error().message().starts_with("cuda:4096: there are ")) << pool.error().message();
  EXPECT_FALSE(CudaAllocator(-1));
}

}  // namespace
}  // namespace celer
