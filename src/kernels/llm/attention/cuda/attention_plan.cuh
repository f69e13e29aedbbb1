// The work items of one launch: which token, keys and query heads each of them has.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/llm/attention/cuda/attention_scores.h"

namespace celer::cuda::attention {

constexpr int kWarps = 2;
constexpr int kThreads = kWarps * 32;
constexpr int kMostSplits = 64;

// Query heads of one kv head that go together, and how many such bunches there are.
struct Bunches {
  int at_once, columns;
  int group, batches;  // query heads and bunches of one kv head
};
inline Bunches BunchesOf(int heads, int kv_heads) {
  const int group = heads / kv_heads, batches = (group + 7) / 8;
  return {(group + batches - 1) / batches, kv_heads * batches, group, batches};
}

struct Span {
  int first, position;  // keys, both included
  int first_block, blocks, per_split, active;
};
// Splits depend on the sequence's own length, and on what LeastBlocks() makes of the batch.
__device__ __forceinline__ Span KeysOf(const DeviceAttentionArgs& a, int position) {
  Span s;
  s.position = position;
  s.first = a.window > 0 ? max(0, position - a.window + 1) : 0;
  s.first_block = s.first / kKvBlock;
  s.blocks = position / kKvBlock + 1 - s.first_block;
  s.per_split = s.blocks;
  s.active = 1;
  if (s.blocks > a.least_blocks && a.splits > 1) {
    const int most = max(a.least_blocks, (s.blocks + a.splits - 1) / a.splits);
    const int count = (s.blocks + most - 1) / most;  // of equal size
    s.per_split = (s.blocks + count - 1) / count;
    s.active = (s.blocks + s.per_split - 1) / s.per_split;
  }
  return s;
}

// Some query heads of one token over a run of its KV blocks.
struct Unit {
  int token, split;
  int column, kv_head, first_head, queries;  // a column is a kv head and a bunch of its query heads
  int row;                                   // of the block table
  int begin, end;                            // KV blocks
  Span span;

  // Blocks go to the warps in turn.
  __device__ __forceinline__ int BlocksOf(int warp) const {
    return (end - begin - warp + kWarps - 1) / kWarps;
  }
};

// What units are made from, in shared memory, so that finding one waits for no other memory. Units are
// tokens, splits and columns, columns fastest, so that neighbours read neighbouring memory.
struct UnitPlan {
  int positions[kAttentionTokens], rows[kAttentionTokens];
  uint16_t starts[kAttentionTokens + 1];  // splits of the tokens in front
  int splits[kWarps];                     // of the tokens that a warp has looked at
  static_assert(kAttentionTokens * kMostSplits < 1 << 16);

  // By all threads, for all tokens, each thread some neighbours.
  __device__ __forceinline__ void Fill(const DeviceAttentionArgs& a, int thread) {
    constexpr int kMostEach = kAttentionTokens / kThreads;
    const int warp = thread / 32, lane = thread % 32;
    const int each = (a.batch.count + kThreads - 1) / kThreads;
    const int begin = thread * each, end = min(begin + each, a.batch.count);
    int position[kMostEach], row[kMostEach];
#pragma unroll
    for (int i = 0; i < kMostEach; ++i)
      if (begin + i < end) {
        position[i] = __ldcg(a.batch.positions + begin + i);
        row[i] = __ldcg(a.batch.sequence + begin + i);
      }
    __syncwarp();  // keeps what waits for the loads behind the last of them
#pragma unroll
    for (int i = 0; i < kMostEach; ++i)
      if (begin + i < end) positions[begin + i] = position[i], rows[begin + i] = row[i];
    int mine = 0;
#pragma unroll 1
    for (int token = begin; token < end; ++token) {
      const int active = KeysOf(a, positions[token]).active;
      starts[token] = static_cast<uint16_t>(active);
      mine += active;
    }
    int until = mine;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
      const int left = __shfl_up_sync(0xffffffffu, until, apart);
      if (lane >= apart) until += left;
    }
    if (lane == 31) splits[warp] = until;
    __syncthreads();
    int start = until - mine;
#pragma unroll
    for (int v = 0; v + 1 < kWarps; ++v) start += v < warp ? splits[v] : 0;
#pragma unroll 1
    for (int token = begin; token < end; ++token) {
      const int active = starts[token];
      starts[token] = static_cast<uint16_t>(start);
      start += active;
    }
    if (begin < end && end == a.batch.count) starts[end] = static_cast<uint16_t>(start);
    __syncthreads();
  }

  __device__ __forceinline__ int Count(const DeviceAttentionArgs& a, const Bunches& b) const {
    return starts[a.batch.count] * b.columns;
  }

  // The last token that starts at or before `index`; by a whole warp, in two steps: the tokens are looked at
  // kStep apart, then one by one.
  __device__ __forceinline__ int TokenOf(int count, int index, int lane) const {
    constexpr int kStep = kAttentionTokens / 32;
    static_assert(kStep <= 32);
    const auto reached = [&](int token) { return token < count && starts[token] <= index; };
    const int near = (__popc(__ballot_sync(0xffffffffu, reached(lane * kStep))) - 1) * kStep;
    return near + __popc(__ballot_sync(0xffffffffu, lane < kStep && reached(near + lane))) - 1;
  }

  // By a whole warp.
  __device__ __forceinline__ Unit Find(const DeviceAttentionArgs& a, const Bunches& b, int unit,
                                       int lane) const {
    Unit u;
    const int index = unit / b.columns;
    u.token = TokenOf(a.batch.count, index, lane);
    u.split = index - starts[u.token];
    u.row = rows[u.token];
    u.column = unit - index * b.columns;
    u.kv_head = u.column / b.batches;
    const int in_group = (u.column - u.kv_head * b.batches) * b.at_once;
    u.first_head = u.kv_head * b.group + in_group;
    u.queries = min(b.at_once, b.group - in_group);
    u.span = KeysOf(a, positions[u.token]);
    u.begin = u.span.first_block + u.split * u.span.per_split;
    u.end = min(u.begin + u.span.per_split, u.span.first_block + u.span.blocks);
    return u;
  }
};

}  // namespace celer::cuda::attention
