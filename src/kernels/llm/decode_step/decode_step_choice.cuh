// Greedy sampling fused into the logits: every block leaves the argmax of its rows in a slot of its own, with
// the tag of the step in it, and one block polls all of them.
#pragma once

#include "kernels/llm/matmul/cuda/handover.cuh"
#include "kernels/llm/sample/greedy_key.cuh"

namespace celer::cuda::step {

// Of a key (greedy_key.cuh), where the tag of the step stands.
constexpr uint64_t kTagBit = 1u << 31;

__device__ __forceinline__ void PublishKey(uint64_t* to, uint64_t key, uint32_t tag) {
  key = (key & ~kTagBit) | (tag != 0 ? kTagBit : 0);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(key) : "memory");
}
__device__ __forceinline__ uint64_t LoadKey(const uint64_t* from) {
  uint64_t key;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(key) : "l"(from) : "memory");
  return key;
}

// A lane's best of the rows that it finished, by token.
template <int Tokens>
struct Best {
  uint64_t key[Tokens] = {};

  __device__ __forceinline__ void Add(int token, int row, float logit) {
    const uint64_t now = GreedyKey(logit, row);
#pragma unroll
    for (int t = 0; t < Tokens; ++t)
      if (t == token && now > key[t]) key[t] = now;
  }
};

// The argmax over `blocks`, by one warp.
__device__ __forceinline__ uint64_t AwaitBest(const uint64_t* keys, int blocks, uint32_t tag, int lane) {
  constexpr int kAtOnce = 5;
  uint64_t best = 0;
  for (int first = lane; first - lane < blocks; first += 32 * kAtOnce) {
    uint64_t key[kAtOnce];
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i * 32 < blocks) key[i] = LoadKey(keys + first + i * 32);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i * 32 < blocks) missing = missing || ((key[i] & kTagBit) != 0) != (tag != 0);
    } while (missing);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * 32 < blocks && (key[i] | kTagBit) > best) best = key[i] | kTagBit;
  }
  __syncwarp();
  return WarpBest(best);
}

}  // namespace celer::cuda::step
