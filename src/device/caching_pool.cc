#include "device/caching_pool.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/safe_math.h"

namespace celer {

struct CachingPool::Segment {
  std::byte* base = nullptr;
  size_t bytes = 0;
  bool small = false;
  size_t busy = 0;  // blocks that are in use or pending; 0 means the segment can be given back
  Block* first = nullptr;
};

struct CachingPool::Block {
  Segment* segment = nullptr;
  std::byte* ptr = nullptr;
  size_t bytes = 0;
  size_t requested = 0;
  StreamId stream = kAnyStream;
  BlockState state = BlockState::kFree;
  Block* prev = nullptr;  // neighbours in the segment, by address
  Block* next = nullptr;
  std::vector<StreamId> users;  // streams other than `stream`
  size_t events = 0;            // of those users, still to come
};

bool CachingPool::BestFit::operator()(const Block* a, const Block* b) const {
  return std::tie(a->stream, a->bytes, a->ptr) < std::tie(b->stream, b->bytes, b->ptr);
}

CachingPool::CachingPool(SegmentSource& source, StreamEvents& events, size_t limit)
    : source_(source), events_(events), limit_(limit) {}

CachingPool::~CachingPool() {
  CELER_CHECK_EQ(in_use_.size(), 0u);  // somebody still holds memory of this pool
  if (!waiting_.empty()) events_.SynchronizeDevice();
  for (auto& [stream, queue] : waiting_)
    for (const Waiting& entry : queue) events_.Release(entry.event);
  for (auto& [base, segment] : segments_) {
    for (Block* block = segment->first; block != nullptr;) delete std::exchange(block, block->next);
    source_.Free(base);
  }
}

CachingPool::FreeBlocks& CachingPool::PoolOf(const Block* block) {
  return block->segment->small ? small_free_ : large_free_;
}

Result<void*> CachingPool::Allocate(size_t bytes, StreamId stream) {
  CELER_CHECK_NE(stream, kAnyStream);
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  // A request that can never succeed must not evict what the others have cached.
  const size_t possible = std::min(source_.TotalBytes(), limit_);
  auto block = bytes > possible ? Result<Block*>(OutOfMemory(bytes)) : FindBlock(bytes, stream);
  if (!block) {
    ++stats_.failures;
    return block.error();
  }
  return HandOut(*block, bytes, stream);
}

// A free block, in no pool, that holds `bytes`; in a new segment or after giving others back if need be.
Result<CachingPool::Block*> CachingPool::FindBlock(size_t bytes, StreamId stream) {
  const size_t size = RoundUp(bytes, kRounding);
  const bool small = size <= kSmallRequest;
  FreeBlocks& pool = small ? small_free_ : large_free_;
  FinishEvents();
  if (Block* const block = TakeFree(pool, size, stream)) return block;

  const size_t tight = RoundUp(size, kLargeRounding);
  const size_t roomy = small ? kSmallSegment : size < kLargeRequest ? kLargeSegment : tight;
  auto fresh = NewSegment(roomy, small, stream);
  if (fresh || fresh.error().code() != Error::Code::kOutOfMemory) return fresh;

  // First use what we have: waiting for the device is cheaper than giving segments back, which waits too.
  if (events_.SynchronizeDevice()) {
    FinishEvents();
    MakeAnyStream(std::nullopt);
    if (Block* const block = TakeFree(pool, size, stream)) return block;
  }
  // Then give back as little as may do, then all that is idle.
  for (const size_t wanted : {roomy, std::numeric_limits<size_t>::max()}) {
    if (ReleaseSegments(wanted) == 0) break;
    fresh = NewSegment(roomy, small, stream);
    if (fresh || fresh.error().code() != Error::Code::kOutOfMemory) return fresh;
  }
  // Last, accept a segment that just fits, or put a small request into a large block.
  if (tight < roomy) {
    fresh = NewSegment(tight, small, stream);
    if (fresh || fresh.error().code() != Error::Code::kOutOfMemory) return fresh;
  }
  if (small)
    if (Block* const block = TakeFree(large_free_, size, stream)) return block;
  return OutOfMemory(bytes);
}

// The best fit of this stream, or else of those that any stream may use; taken out of the pool.
CachingPool::Block* CachingPool::TakeFree(FreeBlocks& pool, size_t size, StreamId stream) {
  for (const StreamId owner : {stream, kAnyStream}) {
    Block key;
    key.stream = owner;
    key.bytes = size;
    const auto found = pool.lower_bound(&key);
    if (found == pool.end() || (*found)->stream != owner) continue;
    Block* const block = *found;
    pool.erase(found);
    return block;
  }
  return nullptr;
}

// One new segment as one free block that is in no pool yet.
Result<CachingPool::Block*> CachingPool::NewSegment(size_t segment_bytes, bool small, StreamId stream) {
  if (stats_.reserved > limit_ || segment_bytes > limit_ - stats_.reserved)
    return Error::OutOfMemory("the pool's limit of ", FormatBytes(limit_), " is reached");
  CELER_ASSIGN(void* base, source_.Allocate(segment_bytes));
  CELER_CHECK_EQ(reinterpret_cast<uintptr_t>(base) % kRounding, 0u);
  auto segment = std::make_unique<Segment>();
  segment->base = static_cast<std::byte*>(base);
  segment->bytes = segment_bytes;
  segment->small = small;
  auto* const block = new Block;
  block->segment = segment.get();
  block->ptr = segment->base;
  block->bytes = segment_bytes;
  // Bound to the stream that asked, so that two streams do not chop up one segment between them.
  block->stream = stream;
  segment->first = block;
  segments_.emplace(segment->base, std::move(segment));
  stats_.reserved += segment_bytes;
  stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
  ++stats_.segments;
  ++stats_.segment_allocations;
  return block;
}

// `block` is free and in no pool. Splits off what is not needed.
void* CachingPool::HandOut(Block* block, size_t requested, StreamId stream) {
  const size_t size = RoundUp(requested, kRounding);
  const size_t rest = block->bytes - size;
  // A remainder of a large block that only fits small requests would never be used.
  const bool small_request = size <= kSmallRequest;
  if (small_request ? rest >= kRounding : rest > kSmallestLargeRest) {
    auto* const tail = new Block;
    tail->segment = block->segment;
    tail->ptr = block->ptr + size;
    tail->bytes = rest;
    tail->stream = block->stream;
    tail->prev = block;
    tail->next = block->next;
    if (tail->next != nullptr) tail->next->prev = tail;
    block->next = tail;
    block->bytes = size;
    PoolOf(tail).insert(tail);
  }
  block->state = BlockState::kInUse;
  block->requested = requested;
  block->stream = stream;
  ++block->segment->busy;
  in_use_.emplace(block->ptr, block);
  ++stats_.allocations;
  stats_.requested += requested;
  stats_.in_use += block->bytes;
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  return block->ptr;
}

void CachingPool::Free(void* ptr) {
  if (ptr == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto found = in_use_.find(ptr);
  CELER_CHECK(found != in_use_.end());  // freed twice, or never ours
  Block* const block = found->second;
  in_use_.erase(found);
  ++stats_.frees;
  stats_.requested -= block->requested;
  stats_.in_use -= block->bytes;
  block->state = BlockState::kPending;
  for (const StreamId user : std::exchange(block->users, {})) {
    if (const auto event = events_.Record(user)) {
      waiting_[user].push_back({*event, block});
      ++block->events;
    }
  }
  if (block->events > 0) {
    stats_.pending += block->bytes;
    return;
  }
  MakeFree(block);
}

void CachingPool::RecordStream(void* ptr, StreamId stream) {
  CELER_CHECK_NE(stream, kAnyStream);
  if (ptr == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto found = in_use_.find(ptr);
  CELER_CHECK(found != in_use_.end());
  Block* const block = found->second;
  if (stream == block->stream || std::ranges::count(block->users, stream) > 0) return;
  block->users.push_back(stream);
}

// `block` is pending and nobody but its own stream may still use it.
void CachingPool::MakeFree(Block* block) {
  block->state = BlockState::kFree;
  block->requested = 0;
  --block->segment->busy;
  for (Block* const neighbour : {block->prev, block->next})
    if (neighbour != nullptr && neighbour->state == BlockState::kFree) Absorb(block, neighbour);
  PoolOf(block).insert(block);
}

// Coalesces a free block, which is in no pool, with a free neighbour, which is in its pool. Memory of one
// stream and of any stream becomes memory of the one; that of two streams stays apart until one of them is
// idle.
void CachingPool::Absorb(Block* block, Block* neighbour) {
  if (block->stream != neighbour->stream && block->stream != kAnyStream && neighbour->stream != kAnyStream)
    return;
  PoolOf(neighbour).erase(neighbour);
  if (block->stream == kAnyStream) block->stream = neighbour->stream;
  if (neighbour == block->prev) {
    block->ptr = neighbour->ptr;
    block->prev = neighbour->prev;
    if (block->prev != nullptr) block->prev->next = block;
    if (block->segment->first == neighbour) block->segment->first = block;
  } else {
    block->next = neighbour->next;
    if (block->next != nullptr) block->next->prev = block;
  }
  block->bytes += neighbour->bytes;
  delete neighbour;
}

void CachingPool::StreamSynchronized(StreamId stream) {
  const std::lock_guard lock(mutex_);
  FinishEvents();
  MakeAnyStream(stream);
}

// Free blocks of one stream, or of all, become usable by any; more neighbours can then be coalesced.
void CachingPool::MakeAnyStream(std::optional<StreamId> only) {
  for (FreeBlocks* const pool : {&small_free_, &large_free_}) {
    for (;;) {
      Block key;  // bytes 0 and address null: before the first block of that stream
      key.stream = only.value_or(0);
      const auto found = pool->lower_bound(&key);
      if (found == pool->end() || (*found)->stream == kAnyStream || (only && (*found)->stream != *only))
        break;
      Block* const block = *found;
      pool->erase(found);
      block->stream = kAnyStream;
      for (Block* const neighbour : {block->prev, block->next}) {
        if (neighbour == nullptr || neighbour->state != BlockState::kFree) continue;
        // All streams are idle: so is the neighbour's, whose turn would come later.
        if (!only || neighbour->stream == *only) {
          PoolOf(neighbour).erase(neighbour);
          neighbour->stream = kAnyStream;
          PoolOf(neighbour).insert(neighbour);
        }
        Absorb(block, neighbour);
      }
      pool->insert(block);
    }
  }
}

void CachingPool::FinishEvents() {
  for (auto queue = waiting_.begin(); queue != waiting_.end();) {
    auto& entries = queue->second;
    while (!entries.empty() && events_.Done(entries.front().event)) {
      events_.Release(entries.front().event);
      Block* const block = entries.front().block;
      entries.pop_front();
      if (--block->events > 0) continue;
      stats_.pending -= block->bytes;
      MakeFree(block);
    }
    queue = entries.empty() ? waiting_.erase(queue) : std::next(queue);
  }
}

// Gives idle segments back until `bytes_wanted` are free: one that is just large enough if there is one, else
// the largest first, so that few calls do. Returns the bytes given back.
size_t CachingPool::ReleaseSegments(size_t bytes_wanted) {
  std::vector<Segment*> idle;
  for (const auto& [base, segment] : segments_)
    if (segment->busy == 0) idle.push_back(segment.get());
  std::ranges::sort(idle, std::greater<>(), &Segment::bytes);
  const auto enough = std::ranges::find_if(
      idle.rbegin(), idle.rend(), [&](const Segment* segment) { return segment->bytes >= bytes_wanted; });
  if (enough != idle.rend()) idle = {*enough};
  size_t released = 0;
  for (Segment* const segment : idle) {
    if (released >= bytes_wanted) break;
    released += segment->bytes;
    ReleaseSegment(segment);
  }
  return released;
}

void CachingPool::ReleaseSegment(Segment* segment) {
  for (Block* block = segment->first; block != nullptr;) {
    PoolOf(block).erase(block);
    delete std::exchange(block, block->next);
  }
  std::byte* const base = segment->base;
  stats_.reserved -= segment->bytes;
  --stats_.segments;
  ++stats_.segment_frees;
  segments_.erase(base);
  source_.Free(base);
}

size_t CachingPool::Trim(size_t keep) {
  const std::lock_guard lock(mutex_);
  FinishEvents();
  // What is pending on other streams keeps its segment; waiting for it here would stall the caller.
  const size_t cached = stats_.cached();
  return cached <= keep ? 0 : ReleaseSegments(cached - keep);
}

MemoryStats CachingPool::Stats() const {
  const std::lock_guard lock(mutex_);
  return StatsLocked();
}

MemoryStats CachingPool::StatsLocked() const {
  MemoryStats out = stats_;
  for (const FreeBlocks* const pool : {&small_free_, &large_free_})
    for (const Block* const block : *pool) out.largest_free = std::max(out.largest_free, block->bytes);
  return out;
}

Error CachingPool::OutOfMemory(size_t bytes) const {
  const MemoryStats s = StatsLocked();
  const std::string limit =
      limit_ == std::numeric_limits<size_t>::max() ? "" : " under a limit of " + FormatBytes(limit_);
  return Error::OutOfMemory(
      source_.device().ToString(), ": cannot allocate ", FormatBytes(bytes), ": the device has ",
      FormatBytes(source_.FreeBytes()), " free of ", FormatBytes(source_.TotalBytes()),
      ", the pool has reserved ", FormatBytes(s.reserved), limit, " in ", s.segments, " segments (peak ",
      FormatBytes(s.peak_reserved), "), of which ", FormatBytes(s.in_use), " in use (peak ",
      FormatBytes(s.peak_in_use), ", asked for ", FormatBytes(s.requested), ") and ", FormatBytes(s.cached()),
      " cached (", FormatBytes(s.pending), " waiting for other streams, largest block ",
      FormatBytes(s.largest_free), ", fragmentation ", static_cast<int>(100 * s.fragmentation() + 0.5),
      " %), after ", s.allocations, " allocations and ", s.frees,
      " frees; use a smaller model, context or batch, or less memory for the KV cache");
}

std::vector<CachingPool::SegmentInfo> CachingPool::Snapshot() const {
  const std::lock_guard lock(mutex_);
  std::vector<SegmentInfo> out;
  for (const auto& [base, segment] : segments_) {
    SegmentInfo info{base, segment->bytes, segment->small, {}};
    for (const Block* block = segment->first; block != nullptr; block = block->next)
      info.blocks.push_back(
          {static_cast<size_t>(block->ptr - base), block->bytes, block->stream, block->state});
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace celer
