#include "device/caching_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "base/safe_math.h"

namespace celer {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
using State = CachingPool::BlockState;

// A device of some bytes with streams on which work is queued and finishes when the test says so. Addresses
// are real but never touched.
class FakeDevice final : public SegmentSource, public StreamEvents {
 public:
  explicit FakeDevice(size_t capacity) : capacity_(capacity) {
    void* const mapped =
        mmap(nullptr, capacity_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    base_ = static_cast<std::byte*>(mapped);
  }
  ~FakeDevice() override {
    EXPECT_TRUE(segments_.empty()) << "memory was not given back";
    EXPECT_EQ(open_events_, 0);
    munmap(base_, capacity_);
  }

  Result<void*> Allocate(size_t bytes) override {
    ++calls_;
    if (fault_) return Error::Device("the bus is on fire");
    std::byte* at = base_;  // first fit
    for (const auto& [segment, size] : segments_) {
      if (static_cast<size_t>(segment - at) >= bytes) break;
      at = segment + size;
    }
    if (bytes > capacity_ - static_cast<size_t>(at - base_)) return Error::OutOfMemory("full");
    segments_[at] = bytes;
    return static_cast<void*>(at);
  }
  void Free(void* segment) override {
    EXPECT_EQ(segments_.erase(static_cast<std::byte*>(segment)), 1u) << "freed twice";
    done_ = queued_;
  }
  size_t FreeBytes() const override {
    size_t used = 0;
    for (const auto& [segment, size] : segments_) used += size;
    return capacity_ - used;
  }
  size_t TotalBytes() const override { return capacity_; }
  Device device() const override { return Device::Cuda(3); }

  std::optional<Event> Record(StreamId stream) override {
    if (done_[stream] == queued_[stream]) return std::nullopt;
    ++open_events_;
    return stream << 32 | queued_[stream];
  }
  bool Done(Event event) override { return done_[event >> 32] >= (event & 0xffffffff); }
  void Release(Event) override { --open_events_; }
  bool SynchronizeDevice() override {
    if (capturing_) return false;
    done_ = queued_;
    return true;
  }

  uint64_t Queue(StreamId stream) { return ++queued_[stream]; }  // one piece of work; its ticket
  void Finish(StreamId stream) { done_[stream] = queued_[stream]; }
  bool Finished(StreamId stream, uint64_t ticket) { return done_[stream] >= ticket; }

  const std::map<std::byte*, size_t>& segments() const { return segments_; }
  int calls() const { return calls_; }
  bool fault_ = false;
  bool capturing_ = false;

 private:
  const size_t capacity_;
  std::byte* base_ = nullptr;
  std::map<std::byte*, size_t> segments_;
  std::map<StreamId, uint64_t> queued_, done_;
  int open_events_ = 0;
  int calls_ = 0;
};

struct PoolTest : testing::Test {
  explicit PoolTest(size_t capacity = 256 * kMiB) : device(capacity), pool(device, device) {}
  void* Get(size_t bytes, StreamId stream = kDefaultStream) {
    auto ptr = pool.Allocate(bytes, stream);
    EXPECT_TRUE(ptr) << ptr.error().message();
    return ptr ? *ptr : nullptr;
  }
  FakeDevice device;
  CachingPool pool;
};

using CachingPoolTest = PoolTest;
struct CachingPoolTightTest : PoolTest {
  CachingPoolTightTest() : PoolTest(48 * kMiB) {}
};

TEST_F(CachingPoolTest, SegmentSizesFollowTheRequest) {
  struct Case {
    size_t request, segment, rounded;
  };
  for (const Case c :
       {Case{1, 2 * kMiB, 512}, Case{513, 2 * kMiB, 1024}, Case{kMiB, 2 * kMiB, kMiB},
        Case{kMiB + 1, 20 * kMiB, kMiB + 512}, Case{10 * kMiB - 512, 20 * kMiB, 10 * kMiB - 512},
        // What is left of these is too little to split off.
        Case{10 * kMiB, 10 * kMiB, 10 * kMiB}, Case{11 * kMiB + 1, 12 * kMiB, 12 * kMiB}}) {
    void* const ptr = Get(c.request);
    const auto snapshot = pool.Snapshot();
    ASSERT_EQ(snapshot.size(), 1u);
    EXPECT_EQ(snapshot[0].bytes, c.segment) << c.request;
    EXPECT_EQ(snapshot[0].small, c.request <= kMiB);
    EXPECT_EQ(snapshot[0].blocks[0].bytes, c.rounded) << c.request;
    EXPECT_EQ(pool.Stats().in_use, c.rounded);
    EXPECT_EQ(pool.Stats().requested, c.request);
    pool.Free(ptr);
    EXPECT_EQ(pool.Trim(), c.segment);
  }
}

TEST_F(CachingPoolTest, FreedMemoryIsReusedWithoutTheDriver) {
  void* const first = Get(3000);
  pool.Free(first);
  EXPECT_EQ(Get(2900), first);
  EXPECT_EQ(device.calls(), 1);
  pool.Free(first);
}

TEST_F(CachingPoolTest, TheBestFitIsTaken) {
  // Holes of 8, 2 and 4 KiB, kept apart by blocks in use.
  std::vector<void*> holes, walls;
  for (const size_t kib : {8, 2, 4}) {
    holes.push_back(Get(kib << 10));
    walls.push_back(Get(512));
  }
  for (void* const hole : holes) pool.Free(hole);
  EXPECT_EQ(Get(3 << 10), holes[2]);
  EXPECT_EQ(Get(2 << 10), holes[1]);
  EXPECT_EQ(Get(5 << 10), holes[0]);
  for (void* const ptr : {holes[0], holes[1], holes[2], walls[0], walls[1], walls[2]}) pool.Free(ptr);
}

TEST_F(CachingPoolTest, NeighboursMergeInEveryOrder) {
  std::array<int, 3> order = {0, 1, 2};
  do {
    std::array<void*, 3> ptr = {Get(kMiB / 2), Get(kMiB / 2), Get(kMiB / 2)};
    for (const int i : order) pool.Free(ptr[i]);
    const auto snapshot = pool.Snapshot();
    ASSERT_EQ(snapshot.size(), 1u);
    ASSERT_EQ(snapshot[0].blocks.size(), 1u);
    EXPECT_EQ(snapshot[0].blocks[0].bytes, 2 * kMiB);
    EXPECT_EQ(pool.Stats().largest_free, 2 * kMiB);
    EXPECT_EQ(pool.Stats().fragmentation(), 0.0);
  } while (std::ranges::next_permutation(order).found);
}

TEST_F(CachingPoolTest, FragmentationCountsWhatOneRequestCannotGet) {
  void* const a = Get(kMiB / 2);
  void* const wall = Get(512);
  pool.Free(a);
  const MemoryStats stats = pool.Stats();
  EXPECT_EQ(stats.cached(), 2 * kMiB - 512);
  EXPECT_EQ(stats.largest_free, 2 * kMiB - kMiB / 2 - 512);
  EXPECT_NEAR(stats.fragmentation(), 0.25, 0.01);
  pool.Free(wall);
}

TEST_F(CachingPoolTest, AStreamDoesNotGetWhatAnotherMayStillUse) {
  void* const a = Get(4 * kMiB, 1);
  device.Queue(1);
  pool.Free(a);
  void* const b = Get(4 * kMiB, 2);
  EXPECT_NE(b, a);
  EXPECT_EQ(Get(4 * kMiB, 1), a);  // the same stream gets it at once
  pool.Free(a);
  device.Finish(1);
  pool.StreamSynchronized(1);
  void* const c = Get(18 * kMiB, 2);  // the whole segment of stream 1, merged
  EXPECT_EQ(c, a);
  EXPECT_EQ(device.calls(), 2);
  pool.Free(b);
  pool.Free(c);
}

TEST_F(CachingPoolTest, ABlockUsedByAnotherStreamWaitsForItsEvent) {
  void* const a = Get(4 * kMiB, 1);
  pool.RecordStream(a, 2);
  pool.RecordStream(a, 2);  // twice is once
  pool.RecordStream(a, 1);  // its own stream is no news
  device.Queue(2);
  pool.Free(a);
  EXPECT_EQ(pool.Stats().pending, 4 * kMiB);
  EXPECT_EQ(pool.Stats().in_use, 0u);
  void* const b = Get(4 * kMiB, 1);
  EXPECT_NE(b, a);  // not even its own stream
  device.Finish(2);
  EXPECT_EQ(Get(4 * kMiB, 1), a);
  EXPECT_EQ(pool.Stats().pending, 0u);
  pool.Free(a);
  pool.Free(b);
}

TEST_F(CachingPoolTest, SeveralEventsMustAllBeDone) {
  void* const a = Get(4 * kMiB, 1);
  pool.RecordStream(a, 2);
  pool.RecordStream(a, 3);
  device.Queue(2);
  device.Queue(3);
  pool.Free(a);
  device.Finish(3);
  EXPECT_EQ(pool.Trim(), 0u);
  EXPECT_EQ(pool.Stats().pending, 4 * kMiB);
  device.Finish(2);
  EXPECT_EQ(pool.Trim(), 20 * kMiB);
}

TEST_F(CachingPoolTest, APendingBlockDoesNotOutliveThePool) {
  void* const a = Get(100, 1);
  pool.RecordStream(a, 2);
  device.Queue(2);
  pool.Free(a);
}  // FakeDevice checks that events and segments came back

TEST_F(CachingPoolTest, TrimKeepsWhatItIsTold) {
  std::vector<void*> ptrs;
  for (int i = 0; i < 4; ++i) ptrs.push_back(Get(20 * kMiB));
  for (void* const ptr : ptrs) pool.Free(ptr);
  EXPECT_EQ(pool.Stats().cached(), 80 * kMiB);
  EXPECT_EQ(pool.Trim(100 * kMiB), 0u);
  EXPECT_EQ(pool.Trim(50 * kMiB), 40 * kMiB);
  EXPECT_EQ(pool.Trim(), 40 * kMiB);
  EXPECT_EQ(pool.Stats().segments, 0u);
  EXPECT_EQ(pool.Stats().segment_frees, 4u);
  EXPECT_EQ(pool.Stats().peak_reserved, 80 * kMiB);
}

TEST_F(CachingPoolTightTest, UnderPressureAsLittleAsPossibleIsGivenBack) {
  void* const a = Get(12 * kMiB);
  void* const b = Get(24 * kMiB);
  pool.Free(a);
  pool.Free(b);
  // 12 MiB are not reserved. For 26 MiB the segment of 24 alone would do, but is smaller than what is asked
  // for: the largest goes first, and it is enough.
  void* const c = Get(26 * kMiB);
  EXPECT_EQ(pool.Stats().segments, 1u);
  pool.Free(c);
  EXPECT_EQ(pool.Trim(), 26 * kMiB);

  void* const d = Get(10 * kMiB, 1);
  void* const e = Get(14 * kMiB, 1);
  void* const f = Get(18 * kMiB, 1);
  for (void* const ptr : {d, e, f}) pool.Free(ptr);
  device.capturing_ = true;  // or stream 2 would get one of them by waiting
  void* const g = Get(12 * kMiB, 2);
  // 6 MiB are not reserved: the segment of 14 is the smallest that makes room, and the only one to go.
  EXPECT_EQ(pool.Stats().reserved, (10 + 18 + 12) * kMiB);
  pool.Free(g);
  void* const h = Get(48 * kMiB, 2);  // everything must go
  EXPECT_EQ(pool.Stats().segments, 1u);
  pool.Free(h);
}

TEST_F(CachingPoolTightTest, UnderPressureFreeMemoryOfAnotherStreamIsUsed) {
  void* const a = Get(20 * kMiB, 1);
  void* const b = Get(20 * kMiB, 2);
  void* const wall = Get(6 * kMiB, 1);  // does not fit roomily, so the segment is tight
  EXPECT_EQ(pool.Stats().reserved, 46 * kMiB);
  device.Queue(1);
  pool.Free(a);
  EXPECT_EQ(Get(18 * kMiB, 2), a);
  EXPECT_EQ(device.segments().size(), 3u);
  for (void* const ptr : {a, b, wall}) pool.Free(ptr);
}

TEST_F(CachingPoolTightTest, ASmallRequestMaySitInALargeBlock) {
  void* const a = Get(24 * kMiB);
  void* const b = Get(23 * kMiB);
  pool.Free(a);
  void* const c = Get(22 * kMiB);  // leaves 2 MiB of a
  EXPECT_EQ(c, a);
  EXPECT_EQ(device.FreeBytes(), 0u);
  void* const d = Get(700);
  EXPECT_EQ(d, static_cast<std::byte*>(a) + 22 * kMiB);
  EXPECT_EQ(device.segments().size(), 2u);
  for (void* const ptr : {b, c, d}) pool.Free(ptr);
  EXPECT_EQ(pool.Stats().in_use, 0u);
  EXPECT_EQ(pool.Trim(), 48 * kMiB);
}

TEST_F(CachingPoolTightTest, OutOfMemoryListsEverythingInOneSentence) {
  void* const a = Get(30 * kMiB);
  void* const b = Get(5 * kMiB);
  pool.Free(b);
  const auto failed = pool.Allocate(40 * kMiB);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Error::Code::kOutOfMemory);
  // The idle segment was given back in vain.
  EXPECT_EQ(
      failed.error().message(),
      "cuda:3: cannot allocate 40.0 MiB: the device has 18.0 MiB free of 48.0 MiB, the pool has reserved "
      "30.0 MiB in 1 segments (peak 36.0 MiB), of which 30.0 MiB in use (peak 36.0 MiB, asked for 30.0 MiB) "
      "and 0 B cached (0 B waiting for other streams, largest block 0 B, fragmentation 0 %), after 2 "
      "allocations and 1 frees; use a smaller model, context or batch, or less memory for the KV cache");
  EXPECT_EQ(pool.Stats().failures, 1u);
  pool.Free(a);
}

TEST_F(CachingPoolTest, ImpossibleSizesFailAtOnceAndCostNobodyTheCache) {
  pool.Free(Get(5 * kMiB));
  const int calls = device.calls();
  for (const size_t bytes : {256 * kMiB + 1, SIZE_MAX / 2, SIZE_MAX - 511, SIZE_MAX}) {
    const auto failed = pool.Allocate(bytes);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), Error::Code::kOutOfMemory);
  }
  EXPECT_EQ(device.calls(), calls);
  EXPECT_EQ(pool.Stats().cached(), 20 * kMiB);
}

TEST_F(CachingPoolTest, AFaultIsPassedOnAsItIs) {
  device.fault_ = true;
  const auto failed = pool.Allocate(100);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Error::Code::kDevice);
  EXPECT_EQ(failed.error().message(), "the bus is on fire");
}

TEST_F(CachingPoolTest, ZeroBytesAreNull) {
  EXPECT_EQ(Get(0), nullptr);
  pool.Free(nullptr);
  pool.RecordStream(nullptr, 1);
  EXPECT_EQ(pool.Stats().allocations, 0u);
}

TEST(CachingPoolLimit, IsKept) {
  FakeDevice device(256 * kMiB);
  CachingPool pool(device, device, 32 * kMiB);
  void* const a = *pool.Allocate(20 * kMiB);
  const auto failed = pool.Allocate(14 * kMiB);
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message().find("under a limit of 32.0 MiB"), std::string::npos);
  pool.Free(a);
  const auto b = pool.Allocate(30 * kMiB);  // the idle segment makes room
  ASSERT_TRUE(b);
  pool.Free(*b);
}

TEST(CachingPoolDeathTest, MisuseIsCaught) {
  FakeDevice device(64 * kMiB);
  CachingPool pool(device, device);
  void* const ptr = *pool.Allocate(100);
  pool.Free(ptr);
  EXPECT_DEATH(pool.Free(ptr), "in_use_.end");
  EXPECT_DEATH(pool.RecordStream(ptr, 1), "in_use_.end");
  EXPECT_DEATH(
      {
        CachingPool leaky(device, device);
        (void)leaky.Allocate(100);
      },
      "in_use_.size");
}

TEST_F(CachingPoolTest, StreamAllocatorIsAnAllocator) {
  StreamAllocator allocator(pool, 7);
  auto ptr = allocator.Allocate(1000);
  ASSERT_TRUE(ptr);
  EXPECT_EQ(allocator.device(), Device::Cuda(3));
  EXPECT_EQ(allocator.Stats().in_use, 1024u);
  EXPECT_EQ(pool.Snapshot()[0].blocks[0].stream, 7u);
  allocator.Free(*ptr);
}

TEST_F(CachingPoolTest, ManyThreads) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937 random(t);
      std::vector<void*> mine;
      for (int i = 0; i < 2000; ++i) {
        if (mine.size() < 16 && random() % 2) {
          if (auto ptr = pool.Allocate(random() % (2 * kMiB) + 1, t)) mine.push_back(*ptr);
        } else if (!mine.empty()) {
          pool.Free(mine.back());
          mine.pop_back();
        }
      }
      for (void* const ptr : mine) pool.Free(ptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MemoryStats stats = pool.Stats();
  EXPECT_EQ(stats.in_use, 0u);
  EXPECT_EQ(stats.requested, 0u);
  EXPECT_EQ(stats.allocations, stats.frees);
}

// 100,000 random steps on four streams, on a device that is too small for all of it. A shadow of the pool,
// kept by the test, says what is alive, and which queued work may still touch which bytes.
class RandomSteps {
 public:
  explicit RandomSteps(unsigned seed) : random_(seed) {}

  void Run(int steps) {
    for (int step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
      const unsigned dice = random_() % 100;
      if (dice < 40) {
        Allocate();
      } else if (dice < 78) {
        FreeOne();
      } else if (dice < 92) {
        UseOne();
      } else if (dice < 96) {
        device_.Finish(AnyStream());
      } else if (dice < 99) {
        const StreamId stream = AnyStream();
        device_.Finish(stream);
        pool_.StreamSynchronized(stream);
      } else {
        pool_.Trim(random_() % (64 * kMiB));
      }
      CheckInvariants();
    }
    while (!alive_.empty()) FreeOne();
    CheckInvariants();
    EXPECT_GT(failures_, 0u) << "the device was never full; the test is too weak";
    EXPECT_EQ(pool_.Stats().failures, failures_);
    device_.SynchronizeDevice();
    pool_.Trim();
    EXPECT_EQ(pool_.Stats().reserved, 0u);
    EXPECT_EQ(device_.FreeBytes(), device_.TotalBytes());
  }

 private:
  struct Alive {
    std::byte* ptr;
    size_t bytes;
    StreamId stream;
  };
  struct Use {  // queued work that touches these bytes
    std::byte *begin, *end;
    StreamId stream;
    uint64_t ticket;
  };

  StreamId AnyStream() { return random_() % 4; }

  size_t AnySize() {
    switch (random_() % 8) {
      case 0:
        return random_() % (12 * kMiB) + 9 * kMiB;
      case 1:
      case 2:
        return random_() % (9 * kMiB) + kMiB;
      case 3:
        return kMiB + random_() % 3 - 1;  // at the border between the pools
      case 4:
        return random_() % 4096 + 1;
      default:
        return random_() % kMiB + 1;
    }
  }

  void Allocate() {
    const size_t bytes = AnySize();
    const StreamId stream = AnyStream();
    const auto got = pool_.Allocate(bytes, stream);
    if (!got) {
      ++failures_;
      EXPECT_EQ(got.error().code(), Error::Code::kOutOfMemory);
      CheckInvariants();
      return;
    }
    auto* const ptr = static_cast<std::byte*>(*got);
    std::erase_if(uses_, [&](const Use& use) { return device_.Finished(use.stream, use.ticket); });
    for (const Use& use : uses_)
      EXPECT_TRUE(use.end <= ptr || use.begin >= ptr + bytes || use.stream == stream)
          << "stream " << stream << " got memory that stream " << use.stream << " may still use";
    const auto after = by_address_.lower_bound(ptr);
    EXPECT_TRUE(after == by_address_.end() || ptr + bytes <= after->first) << "overlap";
    EXPECT_TRUE(after == by_address_.begin() || std::prev(after)->first + std::prev(after)->second <= ptr)
        << "overlap";
    EXPECT_EQ(reinterpret_cast<uintptr_t>(ptr) % 512, 0u);
    by_address_[ptr] = bytes;
    requested_ += bytes;
    alive_.push_back({ptr, bytes, stream});
    uses_.push_back({ptr, ptr + bytes, stream, device_.Queue(stream)});
  }

  void UseOne() {
    if (alive_.empty()) return;
    const Alive& block = alive_[random_() % alive_.size()];
    const StreamId stream = AnyStream();
    if (stream != block.stream) pool_.RecordStream(block.ptr, stream);
    uses_.push_back({block.ptr, block.ptr + block.bytes, stream, device_.Queue(stream)});
  }

  void FreeOne() {
    if (alive_.empty()) return;
    std::swap(alive_[random_() % alive_.size()], alive_.back());
    pool_.Free(alive_.back().ptr);
    by_address_.erase(alive_.back().ptr);
    requested_ -= alive_.back().bytes;
    alive_.pop_back();
  }

  void CheckInvariants() {
    const auto snapshot = pool_.Snapshot();
    const MemoryStats stats = pool_.Stats();
    size_t reserved = 0, in_use = 0, pending = 0, largest = 0, in_use_blocks = 0;
    ASSERT_EQ(snapshot.size(), device_.segments().size());
    for (const auto& segment : snapshot) {
      const auto owned = device_.segments().find(const_cast<std::byte*>(segment.base));
      ASSERT_TRUE(owned != device_.segments().end());
      ASSERT_EQ(owned->second, segment.bytes);
      reserved += segment.bytes;
      size_t offset = 0;
      for (size_t i = 0; i < segment.blocks.size(); ++i) {
        const auto& block = segment.blocks[i];
        ASSERT_EQ(block.offset, offset) << "blocks must tile their segment";
        ASSERT_GT(block.bytes, 0u);
        ASSERT_EQ(block.bytes % 512, 0u);
        offset += block.bytes;
        if (block.state == State::kFree) largest = std::max(largest, block.bytes);
        if (block.state == State::kPending) pending += block.bytes;
        if (block.state == State::kInUse) {
          in_use += block.bytes;
          ++in_use_blocks;
          const auto alive = by_address_.find(const_cast<std::byte*>(segment.base) + block.offset);
          ASSERT_TRUE(alive != by_address_.end());
          ASSERT_LE(alive->second, block.bytes);
          ASSERT_LE(block.bytes, RoundUp(alive->second, 512) + kMiB)
              << "more is wasted than the split rule allows";
        }
        if (i == 0) continue;
        const auto& before = segment.blocks[i - 1];
        if (block.state != State::kFree || before.state != State::kFree) continue;
        ASSERT_TRUE(block.stream != before.stream && block.stream != kAnyStream &&
                    before.stream != kAnyStream)
            << "free neighbours must be merged";
      }
      ASSERT_EQ(offset, segment.bytes);
    }
    ASSERT_EQ(in_use_blocks, alive_.size());
    ASSERT_EQ(stats.reserved, reserved);
    ASSERT_EQ(stats.in_use, in_use);
    ASSERT_EQ(stats.pending, pending);
    ASSERT_EQ(stats.requested, requested_);
    ASSERT_EQ(stats.largest_free, largest);
    ASSERT_EQ(stats.segments, snapshot.size());
    ASSERT_EQ(stats.allocations - stats.frees, alive_.size());
    ASSERT_EQ(stats.segment_allocations - stats.segment_frees, snapshot.size());
    ASSERT_GE(stats.peak_in_use, in_use);
    ASSERT_GE(stats.peak_reserved, reserved);
    ASSERT_LE(pending + in_use, reserved);
    ASSERT_GE(stats.fragmentation(), 0.0);
    ASSERT_LE(stats.fragmentation(), 1.0);
  }

  std::mt19937 random_;
  FakeDevice device_{256 * kMiB};
  CachingPool pool_{device_, device_};
  std::vector<Alive> alive_;
  std::map<std::byte*, size_t> by_address_;
  std::vector<Use> uses_;
  size_t requested_ = 0;
  uint64_t failures_ = 0;
};

// All of them would take two minutes under the address sanitizer.
#ifdef __SANITIZE_ADDRESS__
constexpr int kRandomSteps = 10'000;
#else
constexpr int kRandomSteps = 100'000;
#endif

TEST(CachingPoolRandom, AnyStepsKeepTheInvariants) {
  RandomSteps(42).Run(kRandomSteps);
}

}  // namespace
}  // namespace celer
