// Flags of a model that runs on several ranks, and what mpirun and torchrun say about the process.
#pragma once

#include "celer/options.h"
#include "cli/shared/command.h"

namespace celer::cli {

// Ranks as threads of this process.
void AddRankFlags(CLI::App& app, ParallelOptions* options);
// Those for processes, too.
void AddParallelFlags(CLI::App& app, ParallelOptions* options);

// Completes what flags leave open out of the variables that mpirun and torchrun set: which of the processes this one
// is, and where rank 0 is.
Status FindRank(ParallelOptions* options);

// A process that is not rank 0 has no work of its own: it runs what rank 0 says until that ends, and then throws
// EndNow. The options must be complete.
void FollowIfNotFirst(const EngineOptions& options);

}  // namespace celer::cli
