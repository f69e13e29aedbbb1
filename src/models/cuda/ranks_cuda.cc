// One of several ranks: sums over all of them, their logits and the tokens that rank 0 chooses.
#include <numeric>

#include "kernels/llm/exchange/exchange_cuda.h"
#include "kernels/llm/exchange/peers_cuda.h"
#include "models/cuda/operators.h"

namespace celer {

bool CudaRankOptions::shares_gpu() const {
  return peers && peers->shared();
}

int64_t CudaRankOptions::all_vocab() const {
  return peers ? std::accumulate(vocab_parts.begin(), vocab_parts.end(), int64_t{0}) : 0;
}

float* CudaOperators::Sum(Part part) const {
  return ranks ? memory.rank_parts + static_cast<int64_t>(part) * shape.PartFloats() : memory.x;
}

int CudaOperators::first_token() const {
  int64_t first = 0;
  for (int r = 0; ranks && r < ranks->rank; ++r) first += ranks->vocab_parts[static_cast<size_t>(r)];
  return static_cast<int>(first);
}

void CudaOperators::ClearSum(Part part, int count) {
  if (!ranks) return;
  const auto bytes = static_cast<size_t>(count * config().hidden) * sizeof(float);
  Check(cudaMemsetAsync(Sum(part), 0, bytes, stream.get()));
}

void CudaOperators::JoinRanks(Part part, int count, float* to) {
  if (!ranks) return;
  const cuda::CudaPeers& peers = *ranks->peers;
  cuda::AllReduceArgs args{.group = peers.GroupOf(ranks->rank),
                           .out = to ? to : memory.x,
                           .count = count * config().hidden,
                           .add = to == nullptr};
  for (int r = 0; r < peers.ranks(); ++r)
    args.parts[static_cast<size_t>(r)] =
        peers.window(r).parts + static_cast<int64_t>(part) * shape.PartFloats();
  Check(cuda::LaunchAllReduce(args, stream.get()));
}

void CudaOperators::JoinLogits(int rows) {
  if (!ranks || rows == 0) return;
  const cuda::CudaPeers& peers = *ranks->peers;
  cuda::GatherColumnsArgs args{.group = peers.GroupOf(ranks->rank), .rows = rows, .out = memory.all_logits};
  for (int r = 0; r < peers.ranks(); ++r) {
    args.parts[static_cast<size_t>(r)] = peers.window(r).logits;
    args.widths[static_cast<size_t>(r)] = peers.window(r).logits_width;
  }
  Check(cuda::LaunchGatherColumns(args, stream.get()));
}

void CudaOperators::ShareTokens(int count) {
  if (!ranks) return;
  Check(cuda::LaunchShareLists({.group = ranks->peers->GroupOf(ranks->rank),
                                .lists = {memory.tokens, memory.positions},
                                .shared = ranks->peers->window(0).lists,
                                .count = count},
                               stream.get()));
}

}  // namespace celer
