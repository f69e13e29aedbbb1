// The policy of a caching memory pool for a device whose own allocator is slow and waits for the device.
// Plain C++ over two small interfaces, so that all of it is tested without a GPU.
//
// Memory is taken in segments and cut into blocks. Requests are rounded to 512 bytes; up to 1 MiB they come
// out of the small pool (2 MiB segments), beyond that out of the large pool (20 MiB segments below 10 MiB,
// else one segment rounded up to 2 MiB), best fit first. The remainder of a block is split off; free
// neighbours are coalesced.
//
// Streams: work is queued, so a block that the host has freed may still be in use by its stream. It can go to
// the next request on the same stream at once (that work runs later), but to another stream only after the
// stream is known to be idle. A block that other streams use as well (RecordStream) waits for their events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "device/allocator.h"

namespace celer {

using StreamId = uintptr_t;             // the cudaStream_t on CUDA
constexpr StreamId kDefaultStream = 0;  //
constexpr StreamId kAnyStream =
    std::numeric_limits<StreamId>::max();  // of a block that no stream may still use

class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // kOutOfMemory means: try again with less, or after giving something back. Any other error is final.
  // At least 512-byte aligned.
  virtual Result<void*> Allocate(size_t bytes) = 0;
  // Must wait for the device work that may still use the segment, as cudaFree does.
  virtual void Free(void* segment) = 0;
  virtual size_t FreeBytes() const = 0;
  virtual size_t TotalBytes() const = 0;
  virtual Device device() const = 0;
};

class StreamEvents {
 public:
  using Event = uint64_t;
  virtual ~StreamEvents() = default;
  // Marks the end of the work queued on `stream` so far; nullopt when all of it is known to be done.
  virtual std::optional<Event> Record(StreamId stream) = 0;
  virtual bool Done(Event event) = 0;
  virtual void Release(Event event) = 0;  // the handle is not used again
  // Waits for everything queued on the device; false when that is not possible now (graph capture).
  virtual bool SynchronizeDevice() = 0;
};

class CachingPool {
 public:
  static constexpr size_t kRounding = 512;
  static constexpr size_t kSmallRequest = size_t{1} << 20;   // up to here: the small pool
  static constexpr size_t kSmallSegment = size_t{2} << 20;   //
  static constexpr size_t kLargeSegment = size_t{20} << 20;  // for requests below kLargeRequest
  static constexpr size_t kLargeRequest = size_t{10} << 20;  // from here on: a segment of its own
  static constexpr size_t kLargeRounding = size_t{2} << 20;  // what the driver maps at once
  static constexpr size_t kSmallestLargeRest =
      kSmallRequest;  // a large block is split if more than this is left

  // Both outlive the pool. `limit`: the most that may be reserved.
  CachingPool(SegmentSource& source, StreamEvents& events, size_t limit = std::numeric_limits<size_t>::max());
  ~CachingPool();  // CHECKs that everything was freed
  CachingPool(const CachingPool&) = delete;
  CachingPool& operator=(const CachingPool&) = delete;

  // Memory for work that is queued on `stream` from now on. Zero bytes give nullptr.
  Result<void*> Allocate(size_t bytes, StreamId stream = kDefaultStream);
  void Free(void* ptr);
  // Work on `stream`, other than the block's own, uses the block too. The stream must outlive Free(ptr).
  void RecordStream(void* ptr, StreamId stream);
  // The caller has waited for `stream`: what was freed on it may now go to any stream.
  void StreamSynchronized(StreamId stream);
  // Gives idle segments back until at most `keep` bytes are cached, or none is idle. Returns the bytes given
  // back.
  size_t Trim(size_t keep = 0);

  Device device() const { return source_.device(); }
  MemoryStats Stats() const;

  // What the pool looks like inside, in address order, for tests and diagnosis.
  enum class BlockState : uint8_t { kFree, kInUse, kPending };
  struct BlockInfo {
    size_t offset = 0;
    size_t bytes = 0;
    StreamId stream = 0;
    BlockState state = BlockState::kFree;
  };
  struct SegmentInfo {
    const std::byte* base = nullptr;
    size_t bytes = 0;
    bool small = false;
    std::vector<BlockInfo> blocks;
  };
  std::vector<SegmentInfo> Snapshot() const;

 private:
  struct Segment;
  struct Block;
  struct BestFit {  // by stream, then size, then address: lower_bound is the best fit
    bool operator()(const Block* a, const Block* b) const;
  };
  using FreeBlocks = std::set<Block*, BestFit>;

  // All of these expect the lock to be held.
  Result<Block*> FindBlock(size_t bytes, StreamId stream);
  Block* TakeFree(FreeBlocks& pool, size_t size, StreamId stream);
  Result<Block*> NewSegment(size_t segment_bytes, bool small, StreamId stream);
  void* HandOut(Block* block, size_t requested, StreamId stream);
  void MakeFree(Block* block);
  void Absorb(Block* block, Block* neighbour);
  void MakeAnyStream(std::optional<StreamId> only);
  void FinishEvents();
  size_t ReleaseSegments(size_t bytes_wanted);
  void ReleaseSegment(Segment* segment);
  MemoryStats StatsLocked() const;
  Error OutOfMemory(size_t bytes) const;
  FreeBlocks& PoolOf(const Block* block);

  SegmentSource& source_;
  StreamEvents& events_;
  const size_t limit_;

  mutable std::mutex mutex_;
  std::map<std::byte*, std::unique_ptr<Segment>> segments_;
  FreeBlocks small_free_;
  FreeBlocks large_free_;
  std::unordered_map<void*, Block*> in_use_;
  // Oldest first: when one is not done, those behind it are not either.
  struct Waiting {
    StreamEvents::Event event;
    Block* block;
  };
  std::unordered_map<StreamId, std::deque<Waiting>> waiting_;
  MemoryStats stats_;  // largest_free is looked up when asked for
};

// The pool seen as an Allocator for one stream.
class StreamAllocator final : public Allocator {
 public:
  explicit StreamAllocator(CachingPool& pool, StreamId stream = kDefaultStream)
      : pool_(pool), stream_(stream) {}
  Result<void*> Allocate(size_t bytes) override { return pool_.Allocate(bytes, stream_); }
  void Free(void* ptr) override { pool_.Free(ptr); }
  Device device() const override { return pool_.device(); }
  MemoryStats Stats() const override { return pool_.Stats(); }

 private:
  CachingPool& pool_;
  const StreamId stream_;
};

}  // namespace celer
