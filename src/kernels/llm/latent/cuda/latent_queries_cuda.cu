// Queries into the latent space, and the rows of the KV: one kernel, whose last blocks append.
#include <algorithm>

#include "kernels/llm/latent/cuda/head_tiles.cuh"
#include "kernels/llm/latent/cuda/latent_cuda.h"
#include "kernels/llm/qkv/store_row.cuh"

namespace celer::cuda {
namespace latent {
namespace {

// Of the two numbers that rotate together.
struct Pair {
  int first, second;
};
__device__ __forceinline__ Pair PairOf(const LatentQueriesArgs& a, int index) {
  return a.interleaved ? Pair{2 * index, 2 * index + 1} : Pair{index, index + a.rope_dim / 2};
}
struct Angle {
  float cosine, sine;
};
__device__ __forceinline__ Angle AngleOf(const LatentQueriesArgs& a, int position, int index) {
  const int64_t at = static_cast<int64_t>(position) * (a.rope_dim / 2) + index;
  return {__ldg(a.rope_cos + at), __ldg(a.rope_sin + at)};
}
__device__ __forceinline__ float2 Rotated(const Angle& by, float first, float second) {
  return make_float2(first * by.cosine - second * by.sine, second * by.cosine + first * by.sine);
}

// Heads whose rotated part a thread block takes.
constexpr int kRotatedHeads = 4;

// That part of some tokens' queries, behind where their latent part goes; by a whole thread block. What the kernel in
// front does not write is loaded before it has ended.
__device__ __forceinline__ void RotateQueries(const LatentQueriesArgs& a, int first_head, int first_token,
                                              int tokens) {
  const int half = a.rope_dim / 2, all = min(kRotatedHeads, a.heads - first_head) * tokens * half;
  if (!a.decode) WaitForPrevious();
  for (int first = 0; first < all; first += kHeadThreads) {
    const int i = min(first + static_cast<int>(threadIdx.x), all - 1);
    const int index = i % half, token = first_token + i / half % tokens,
              head = first_head + i / half / tokens;
    const Angle angle = AngleOf(a, __ldcg(a.batch.positions + token), index);
    if (first == 0) WaitForPrevious();
    const Pair pair = PairOf(a, index);
    const float* from =
        a.q + token * a.q_stride + static_cast<int64_t>(head) * (a.nope_dim + a.rope_dim) + a.nope_dim;
    float* to = a.out + (static_cast<int64_t>(token) * a.heads + head) * a.kv.head_dim + a.kv_rank;
    const float2 two = Rotated(angle, __ldcg(from + pair.first), __ldcg(from + pair.second));
    to[pair.first] = two.x, to[pair.second] = two.y;
  }
}

// Norm and rope of a token's row, and the append; by a warp, in `row`.
__device__ __forceinline__ void AppendRow(const LatentQueriesArgs& a, int token, float* row, int lane) {
  const int position = __ldcg(a.batch.positions + token);
  const int64_t sequence = __ldcg(a.batch.sequence + token);
  const int64_t block = __ldcg(a.batch.block_table + sequence * a.batch.max_blocks + position / kKvBlock);
  constexpr int kEach = kMaxLatentRow / 32;
  float values[kEach], norm[kEach], squares = 0;
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = lane + 32 * n;
    norm[n] = i < a.kv_rank ? __ldg(a.kv_norm + i) : 1;
  }
  const Angle angle = lane < a.rope_dim / 2 ? AngleOf(a, position, lane) : Angle{};
  WaitForPrevious();
  const float* from = a.kv_row + token * a.kv_row_stride;
#pragma unroll
  for (int n = 0; n < kEach; ++n) {  // all loads first
    const int i = lane + 32 * n;
    values[n] = i < a.kv.head_dim ? __ldcg(from + i) : 0;
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = lane + 32 * n;
    if (a.kv_bias && i < a.kv.head_dim) values[n] += __ldg(a.kv_bias + i);
    if (i < a.kv_rank) squares += values[n] * values[n];
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, apart);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(a.kv_rank) + a.eps);
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = lane + 32 * n;
    if (i < a.kv.head_dim) row[i] = i < a.kv_rank ? values[n] * (scale * norm[n]) : values[n];
  }
  __syncwarp();
  for (int i = lane; i < a.rope_dim / 2; i += 32) {
    const Pair pair = PairOf(a, i);
    float* rotated = row + a.kv_rank;
    const float2 two =
        Rotated(i < 32 ? angle : AngleOf(a, position, i), rotated[pair.first], rotated[pair.second]);
    rotated[pair.first] = two.x, rotated[pair.second] = two.y;
  }
  __syncwarp();
  StoreRow(a.kv, a.kv.k, block, 0, position % kKvBlock, row, lane);
}

// Grid: (blocks of the rows of k_b, those that rotate and one that appends; eights of tokens).
template <class T, int kUnits, int kTiles, bool kWhole>
__global__ void __launch_bounds__(kHeadThreads)
    QueriesKernel(const __grid_constant__ LatentQueriesArgs a, int pitch, int products) {
  extern __shared__ __align__(16) float memory[];
  LetNextStart();
  constexpr int kRows = HeadTiles<T, kUnits, kTiles>::kRows;
  const int first_token = blockIdx.y * kHeadTokens, tokens = min(kHeadTokens, a.batch.count - first_token);
  const int block = blockIdx.x;
  const int append = products + (a.heads + kRotatedHeads - 1) / kRotatedHeads;
  if (block == append) {
    if (!a.decode) WaitForPrevious();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int token = warp; token < tokens; token += kHeadWarps) {
      AppendRow(a, first_token + token, memory + warp * a.kv.head_dim, lane);
      __syncwarp();
    }
    return;
  }
  if (block >= products) return RotateQueries(a, (block - products) * kRotatedHeads, first_token, tokens);
  const int head_dim = a.nope_dim + a.rope_dim, first_row = block * kRows;
  const float* q = a.q + first_token * a.q_stride;
  float* out = a.out + static_cast<int64_t>(first_token) * a.heads * a.kv.head_dim;
  const auto fill = [&] {
    if constexpr (kWhole) {
      const float* from = q + first_row / a.kv_rank * head_dim;
      for (int i = threadIdx.x; i < tokens * pitch; i += kHeadThreads) {
        const int token = i / pitch, column = i % pitch;
        memory[i] = column < a.nope_dim ? __ldcg(from + token * a.q_stride + column) : 0.0f;
      }
      __syncthreads();
    }
  };
  MultiplyHeads<T, kUnits, kTiles, kWhole>(
      {a.k_b, a.kv_rank}, block, tokens, {memory, pitch}, {q, a.q_stride, head_dim}, fill,
      [&](int token, int row, float value) {
        out[(static_cast<int64_t>(token) * a.heads + row / a.kv_rank) * a.kv.head_dim + row % a.kv_rank] =
            value;
      });
}

}  // namespace
}  // namespace latent

cudaError_t LaunchLatentQueries(const LatentQueriesArgs& args, cudaStream_t stream) {
  using namespace latent;
  if (!LatentRuns(args.kv, args.kv_rank)) return cudaErrorInvalidValue;
  const auto run = [&]<class T, int kUnits, int kTiles, bool kWhole>(int pitch) {
    constexpr int kRows = HeadTiles<T, kUnits, kTiles>::kRows;
    // Of few tokens little, so that a block is there beside those of a product in front.
    const int shared = 4 * std::max(kWhole ? std::min(kHeadTokens, args.batch.count) * pitch : 0,
                                    std::min(kHeadWarps, args.batch.count) * args.kv.head_dim);
    const int products = (args.k_b.rows + kRows - 1) / kRows,
              rotations = (args.heads + kRotatedHeads - 1) / kRotatedHeads;
    return Launch(QueriesKernel<T, kUnits, kTiles, kWhole>,
                  dim3(static_cast<unsigned>(products + rotations + 1),
                       static_cast<unsigned>((args.batch.count + kHeadTokens - 1) / kHeadTokens)),
                  dim3(kHeadThreads), static_cast<size_t>(shared), stream, args, pitch, products);
  };
  return WithHeads({args.k_b, args.kv_rank}, run);
}

}  // namespace celer::cuda
