// Greedy sampling (argmax) of each row on the GPU, which then is ready for the next step by itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace celer::cuda {

constexpr int kHostSlots = 8;

// What the host gets for a row with NaN, with +infinity or with nothing but -infinity. The next step's input
// is token 0 then: it may be queued already, and what it computes is thrown away.
constexpr int32_t kNoToken = -1;

// Where the chosen tokens go.
struct GreedyTarget {
  int32_t* tokens = nullptr;     // [rows], the batch's own: the choice goes here
  int32_t* positions = nullptr;  // [rows], the batch's own: each moves on by one
  // Mapped host memory [kHostSlots, host_stride]: the token after position p goes to slot p % kHostSlots, so
  // that steps may be queued ahead of the host's reading.
  int32_t* host_tokens = nullptr;
  int host_stride = 0;
};

struct GreedyArgs {
  const float* logits = nullptr;  // [rows, vocab]
  int rows = 0;
  int vocab = 0;
  uint64_t* best = nullptr;    // [rows] scratch, zeros; left zero
  int32_t* tickets = nullptr;  // [rows] zeros; left zero
  GreedyTarget to;
};
cudaError_t LaunchGreedy(const GreedyArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
