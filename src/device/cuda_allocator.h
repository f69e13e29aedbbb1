// The memory of GPUs, and pinned host memory for asynchronous copies. Only in builds with CUDA; others reach
// a device's memory through AllocatorFor() in allocator.h.
#pragma once

#include "device/caching_pool.h"

namespace celer {

// The caching pool of one GPU. Made at the first call, lives until the process ends.
Result<CachingPool*> CudaPool(int device);
// The same as an Allocator on the GPU's default stream. For another stream: StreamAllocator(pool,
// stream.id()).
Result<Allocator*> CudaAllocator(int device);

// Pinned (page-locked) host memory, cached by the same policy. The host reuses a block as soon as it is
// freed, so each asynchronous copy must be recorded: PinnedPool().RecordStream(ptr, stream.id()).
CachingPool& PinnedPool();

// Every pool that has been made, of GPUs and pinned, gives back what it only keeps cached. Returns its bytes.
size_t TrimCudaPools();
Allocator& PinnedAllocator();

}  // namespace celer
