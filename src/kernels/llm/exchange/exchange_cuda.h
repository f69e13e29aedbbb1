// What the GPUs of a tensor-parallel group exchange in the middle of a step, by reading each other's memory: sums over
// all ranks, their parts of the logits, and the tokens that rank 0 chose. Each is one kernel, in which every rank says
// that what it gives is there, waits for the others, and reads; so it can be part of a captured graph.
//
// All ranks launch the same exchanges in the same order. What a rank gives may be written again once it has launched one
// more exchange behind this one: until then the others may still be reading it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

namespace celer::cuda {

constexpr int kMaxRanks = 8;
// At most: ranks that share a GPU must all be resident at once.
constexpr int kExchangeBlocks = 32;
constexpr int kExchangeThreads = 512;

// One rank's view of its group, made by CudaPeers.
struct ExchangeGroup {
  int rank = 0, ranks = 1;
  // Of each rank, in its own memory: [kMaxRanks, kExchangeBlocks], how many exchanges a block of another rank has come to.
  std::array<uint32_t*, kMaxRanks> arrived = {};
  uint32_t* counts = nullptr;  // [kExchangeBlocks], the same of this rank's own blocks
  uint32_t* failed = nullptr;  // of this rank: not 0 once it has given up waiting; nothing waits from then on
  // In host memory: what the host says to all (not 0: give up), and by rank for whom it waited in vain, counted from 1.
  uint32_t* aborted = nullptr;
  uint32_t* missing = nullptr;
  uint64_t watchdog_ns = 0;
  // Whether the kernel behind an exchange may start early. Not where ranks share a GPU: it would hold multiprocessors that
  // another rank needs to get here.
  bool early = false;
};

// out = the sum of all parts, in the order of the ranks; `add`: that is added to what is in `out`.
struct AllReduceArgs {
  ExchangeGroup group;
  std::array<const float*, kMaxRanks> parts = {};  // [count] each
  float* out = nullptr;                            // [count]; none of the parts
  int64_t count = 0;
  bool add = false;
};
cudaError_t LaunchAllReduce(const AllReduceArgs& args, cudaStream_t stream);

// Columns of all ranks side by side.
struct GatherColumnsArgs {
  ExchangeGroup group;
  std::array<const float*, kMaxRanks> parts = {};  // [rows, widths[r]]
  std::array<int, kMaxRanks> widths = {};
  int rows = 0;
  float* out = nullptr;  // [rows, sum of the widths]; null: this rank only lets the others read
};
cudaError_t LaunchGatherColumns(const GatherColumnsArgs& args, cudaStream_t stream);

// Two lists of rank 0, to all others. Its own may change right behind it.
struct ShareListsArgs {
  ExchangeGroup group;
  std::array<int32_t*, 2> lists = {};  // [count] of this rank: read on rank 0, written on the others
  int32_t* shared = nullptr;           // [2, count] in rank 0's memory, for nothing else
  int count = 0;
};
cudaError_t LaunchShareLists(const ShareListsArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
