// Threads of a session that has its own.
#pragma once

#include <memory>

#include "core/thread_pool.h"

namespace celer::graph {

// They stay awake between the pictures of a film, which come every 33 ms: in a virtual machine waking three
// of them cost a run of MobileNet-v2 about a millisecond, of 4.5.
inline std::unique_ptr<ThreadPool> MakeSessionPool(int threads) {
  return std::make_unique<ThreadPool>(
      ThreadPool::Options{.threads = threads, .spin = std::chrono::milliseconds(40)});
}

}  // namespace celer::graph
