#include "engine/loop/replicas.h"

#include <algorithm>
#include <string>

#include "device/thread_pool.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/find_device.h"

namespace celer {
namespace {

// The device of an engine, once it is known where the first one runs.
Result<DeviceOptions> DeviceOf(const EngineOptions& options, int rank, int count, const Engine& first) {
  if (first.info().device.starts_with("cpu")) return DeviceOptions{};
  CELER_ASSIGN(const Device begin, FindDevice(options.device));
  const int found = CudaDeviceCount();
  if (begin.index + count > found)
    return Error::Invalid("`data_parallel_size` ", count,
                          ": each engine takes a CUDA device of its own, from ", begin.index, " on, and ",
                          found, found == 1 ? " is" : " are", " here; lower it, or use `device` cpu");
  return DeviceOptions::Cuda(begin.index + rank);
}

}  // namespace

Result<std::vector<std::unique_ptr<Engine>>> LoadReplicas(const EngineOptions& options, int count) {
  if (count < 1 || count > 256) return Error::Invalid("`data_parallel_size` ", count, ": expected 1 to 256");
  const ParallelOptions& parallel = options.parallel;
  const bool stages = parallel.pipeline_parallel_size > 1;
  if (const int64_t ranks = parallel.ranks(); count > 1 && ranks > 1)
    return Error::Unsupported("`data_parallel_size` ", count, " does not go with ",
                              stages ? "`pipeline_parallel_size` " : "`tensor_parallel_size` ",
                              stages ? parallel.pipeline_parallel_size : ranks, " yet; start ", count,
                              " servers of ", ranks, " ranks behind a router");
  int threads = options.threads;
  if (threads == 0) {
    CELER_ASSIGN(threads, ThreadsFromEnvironment());
  }
  EngineShare share;
  share.target.replicas = share.draft.replicas = count;
  std::vector<std::unique_ptr<Engine>> engines;
  for (int rank = 0; rank < count; ++rank) {
    EngineOptions own = options;
    if (count > 1) own.threads = std::max(1, threads / count + (rank < threads % count ? 1 : 0));
    if (rank > 0) {
      CELER_ASSIGN(own.device, DeviceOf(options, rank, count, *engines[0]));
    }
    auto engine = EngineInternals::Load(own, &share);
    if (!engine && rank > 0) return engine.error().WithContext("engine " + std::to_string(rank));
    if (!engine) return engine.error();
    engines.push_back(std::move(*engine));
  }
  return engines;
}

}  // namespace celer
