// The splits of attention together, and their values out of the latent space.
#include <algorithm>

#include "kernels/llm/latent/cuda/head_tiles.cuh"
#include "kernels/llm/latent/cuda/latent_attention_plan.h"
#include "kernels/llm/latent/cuda/latent_cuda.h"
#include "kernels/llm/latent/cuda/latent_join_cuda.h"

namespace celer::cuda {
namespace latent {
namespace {

// What the sums of a token's splits are multiplied with; those from `used` on are not there.
struct SplitWeights {
  float of[kHeadTokens][kMostLatentSplits];
  int used[kHeadTokens];
};

// By a warp. `row`: token and head.
__device__ __forceinline__ void WeighSplits(const LatentPieces& p, int64_t row, int token,
                                            SplitWeights& weights, int lane) {
  constexpr int kRuns = kMostLatentSplits / 32;
  float2 tops[kRuns];
  float top = -INFINITY, total = 0;
  int used = 0;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int split = lane + 32 * i;
    tops[i] = split < p.splits ? __ldcg(p.tops + row * p.splits + split) : make_float2(-INFINITY, 0);
    top = fmaxf(top, tops[i].x);
    if (split < p.splits && tops[i].y != 0) used = split + 1;
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
    used = max(used, __shfl_xor_sync(0xffffffffu, used, apart));
  }
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    tops[i].x = tops[i].y == 0 ? 0 : exp2f(tops[i].x - top);
    total += tops[i].x * tops[i].y;
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
#pragma unroll
  for (int i = 0; i < kRuns; ++i) weights.of[token][lane + 32 * i] = tops[i].x / total;
  if (lane == 0) weights.used[token] = used;
}

__device__ __forceinline__ void Add(float4& sum, const float4& part, float by) {
  sum.x += part.x * by, sum.y += part.y * by, sum.z += part.z * by, sum.w += part.w * by;
}

// A head's sums of some tokens, joined, into shared memory; by a whole thread block. Those of the first splits are loaded
// before it is known how many there are.
__device__ __forceinline__ void JoinHead(const LatentValuesArgs& a, int first_token, int tokens, int head,
                                         SplitWeights& weights, float* to, int pitch) {
  constexpr int kAhead = 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, fours = pitch / 4;
  const LatentPieces& p = a.pieces;
  const auto load = [&](int i, int split) {
    const int64_t row = static_cast<int64_t>(first_token + i / fours) * a.heads + head;
    const float* from = p.sums + (row * p.splits + split) * a.kv_rank + i % fours * 4;
    return __ldcg(reinterpret_cast<const float4*>(from));
  };
  const auto exists = [&](int i) { return i < tokens * fours && i % fours * 4 < a.kv_rank; };
  const int mine = threadIdx.x;
  float4 ahead[kAhead];
#pragma unroll
  for (int split = 0; split < kAhead; ++split)
    ahead[split] = exists(mine) && split < p.splits ? load(mine, split) : make_float4(0, 0, 0, 0);
  for (int token = warp; token < tokens; token += kHeadWarps)
    WeighSplits(p, static_cast<int64_t>(first_token + token) * a.heads + head, token, weights, lane);
  __syncthreads();
  for (int i = mine; i < tokens * fours; i += kHeadThreads) {
    const int token = i / fours, used = exists(i) ? weights.used[token] : 0;
    float4 sum = make_float4(0, 0, 0, 0);
    int split = 0;
    if (i == mine) {
#pragma unroll
      for (int first = 0; first < kAhead; ++first)
        if (first < used) Add(sum, ahead[first], weights.of[token][first]);
      split = kAhead;
    }
#pragma unroll 8
    for (; split < used; ++split) Add(sum, load(i, split), weights.of[token][split]);
    *reinterpret_cast<float4*>(to + token * pitch + i % fours * 4) = sum;
  }
  __syncthreads();
}

// Where the products cannot join the splits themselves. Grid: (heads, eights of tokens).
__global__ void __launch_bounds__(kHeadThreads) JoinKernel(const __grid_constant__ LatentValuesArgs a) {
  __shared__ SplitWeights weights;
  LetNextStart();
  WaitForPrevious();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_token = blockIdx.y * kHeadTokens, tokens = min(kHeadTokens, a.count - first_token);
  for (int token = warp; token < tokens; token += kHeadWarps) {
    const int64_t row = static_cast<int64_t>(first_token + token) * a.heads + blockIdx.x;
    WeighSplits(a.pieces, row, token, weights, lane);
    __syncwarp();
    for (int i = lane; i < a.kv_rank; i += 32) {
      float sum = 0;
      for (int split = 0; split < weights.used[token]; ++split)
        sum += __ldcg(a.pieces.sums + (row * a.pieces.splits + split) * a.kv_rank + i) *
               weights.of[token][split];
      a.joined[row * a.kv_rank + i] = sum;
    }
  }
}

// Grid: (blocks of the rows of v_b, eights of tokens).
template <class T, int kUnits, int kTiles, bool kWhole>
__global__ void __launch_bounds__(kHeadThreads)
    ValuesKernel(const __grid_constant__ LatentValuesArgs a, int value_dim, int pitch) {
  extern __shared__ __align__(16) float memory[];
  __shared__ SplitWeights weights;
  LetNextStart();
  const int first_token = blockIdx.y * kHeadTokens, tokens = min(kHeadTokens, a.count - first_token);
  const int block = blockIdx.x, head = block * HeadTiles<T, kUnits, kTiles>::kRows / value_dim;
  const int64_t row = static_cast<int64_t>(a.heads) * a.kv_rank;
  const auto fill = [&] {
    if constexpr (kWhole) JoinHead(a, first_token, tokens, head, weights, memory, pitch);
  };
  float* out = a.out + static_cast<int64_t>(first_token) * a.v_b.rows;
  MultiplyHeads<T, kUnits, kTiles, kWhole>(
      {a.v_b, value_dim}, block, tokens, {memory, pitch}, {a.joined + first_token * row, row, a.kv_rank},
      fill,
      [&](int token, int at, float value) { out[static_cast<int64_t>(token) * a.v_b.rows + at] = value; });
}

}  // namespace
}  // namespace latent

cudaError_t LaunchLatentJoin(const LatentValuesArgs& args, cudaStream_t stream) {
  using namespace latent;
  const auto eights = static_cast<unsigned>((args.count + kHeadTokens - 1) / kHeadTokens);
  return Launch(JoinKernel, dim3(static_cast<unsigned>(args.heads), eights), dim3(kHeadThreads), 0, stream,
                args);
}

cudaError_t LaunchLatentValues(const LatentValuesArgs& args, cudaStream_t stream) {
  using namespace latent;
  const int value_dim = args.v_b.rows / args.heads;
  const auto eights = static_cast<unsigned>((args.count + kHeadTokens - 1) / kHeadTokens);
  const auto run = [&]<class T, int kUnits, int kTiles, bool kWhole>(int pitch) {
    constexpr int kRows = HeadTiles<T, kUnits, kTiles>::kRows;
    // Of few tokens little, so that the blocks of a product behind are there beside these.
    const int shared = kWhole ? 4 * std::min(kHeadTokens, args.count) * pitch : 0;
    if (!kWhole)
      if (const cudaError_t code = LaunchLatentJoin(args, stream); code != cudaSuccess) return code;
    return Launch(ValuesKernel<T, kUnits, kTiles, kWhole>,
                  dim3(static_cast<unsigned>((args.v_b.rows + kRows - 1) / kRows), eights),
                  dim3(kHeadThreads), static_cast<size_t>(shared), stream, args, value_dim, pitch);
  };
  return WithHeads({args.v_b, value_dim}, run);
}

}  // namespace celer::cuda
