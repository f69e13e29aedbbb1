#include "engine/runners/group/processes.h"

#include <fmt/format.h>

#include "base/log.h"
#include "celer/version.h"
#include "device/group/socket_group.h"
#include "kernels/llm/matmul/matmul.h"

namespace celer {

std::string GroupIdentity(const EngineOptions& options) {
  // Kernels are part of it: ranks whose sums differ in the last bit would choose different experts.
  const ParallelOptions& parallel = options.parallel;
  return fmt::format(
      "celer {}, {} x {} ranks{}, weights {}, kv {}, matmul {}", Version(), parallel.pipeline_parallel_size,
      parallel.tensor_parallel_size,
      options.placement.split.empty() ? "" : fmt::format(" by {}", fmt::join(options.placement.split, ",")),
      options.weights.ToString(), Name(options.kv), ChosenMatmul().name);
}

Result<std::unique_ptr<Communicator>> JoinProcesses(const EngineOptions& options) {
  const ParallelOptions& parallel = options.parallel;
  log::Info("rank {} of {} joins its group at {}:{}", parallel.rank, parallel.ranks(), parallel.host,
            parallel.port);
  return JoinSocketGroup({.rank = parallel.rank,
                          .size = static_cast<int>(parallel.ranks()),
                          .host = parallel.host,
                          .port = parallel.port,
                          .identity = GroupIdentity(options),
                          .join = std::chrono::seconds(parallel.join_seconds),
                          .watchdog = std::chrono::seconds(parallel.watchdog_seconds)});
}

}  // namespace celer
