// One of several ranks on GPUs of this process.
#pragma once

#include <cstdint>
#include <vector>

namespace celer {

namespace cuda {
class CudaPeers;  // kernels/llm/exchange/peers_cuda.h
}

// Its model is its part (LoadOptions::shard). Every rank runs the same
// batches in the same order, each from a thread of its own; logits and tokens are those of rank 0.
struct CudaRankOptions {
  cuda::CudaPeers* peers = nullptr;  // null: there are no others. Outlives the decoder
  int rank = 0;
  std::vector<int64_t> vocab_parts = {};  // [ranks], tokens of the vocabulary that each has
  int64_t free_bytes = 0;                 // of its GPU's memory, for this rank

  bool shares_gpu() const;
  int64_t all_vocab() const;  // 0 without others
};

}  // namespace celer
