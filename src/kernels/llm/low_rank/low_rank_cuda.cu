#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/llm/low_rank/low_rank_cuda.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_ptx.cuh"
#include "kernels/shared/cuda/element.cuh"
#include "kernels/shared/cuda/launch.cuh"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTile = kLowRankTile, kStep = 4;
constexpr int kSums = kStep * kTile + kTile;  // of a block: products, and squares of the rows of x
constexpr int kChunk = 32;                    // ranks of A x that a block of the expansion has at once

__device__ __forceinline__ float At(const void* from, LowRankType type, int64_t i) {
  switch (type) {
    case LowRankType::kBf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]);
    case LowRankType::kF16:
      return __half2float(static_cast<const __half*>(from)[i]);
    case LowRankType::kF32:
      break;
  }
  return static_cast<const float*>(from)[i];
}

template <int kVec>
__device__ __forceinline__ void LoadRow(const float* from, float (&to)[kVec]) {
  if constexpr (kVec == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
    to[0] = *from;
  }
}

template <int kVec>
__device__ __forceinline__ void LoadTyped(const void* from, LowRankType type, int64_t at, float (&to)[kVec]) {
  if constexpr (kVec == 4) {
    if (type == LowRankType::kF32) {
      LoadRow<4>(static_cast<const float*>(from) + at, to);
      return;
    }
    // Four numbers of 16 bits.
    const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(from) + at);
    const uint32_t words[2] = {bits.x, bits.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto one = static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16));
      to[i] = type == LowRankType::kBf16 ? __uint_as_float(static_cast<uint32_t>(one) << 16)
                                         : __half2float(__ushort_as_half(one));
    }
  } else {
    to[0] = At(from, type, at);
  }
}

// The products of up to kStep rows of a matrix, from `first` on, with the tile's rows of x, by the whole block. Valid in
// `sums` [kStep, kTile] until the block's next barrier but one; all threads pass the same arguments.
template <int kVec>
__device__ __forceinline__ void DotTile(const LowRankArgs& a, const LowRankTile& tile, const void* matrix,
                                        LowRankType type, int64_t stride, int first, int rows,
                                        float (&parts)[kWarps][kSums], float (&sums)[kSums]) {
  float dots[kStep][kTile] = {}, squares[kTile] = {};
  for (int col = static_cast<int>(threadIdx.x) * kVec; col < a.cols; col += kThreads * kVec) {
    float weights[kVec], values[kStep][kVec];
#pragma unroll
    for (int v = 0; v < kVec; ++v) weights[v] = 1;
    if (a.norm) LoadRow<kVec>(a.norm + col, weights);
#pragma unroll
    for (int r = 0; r < kStep; ++r) {
#pragma unroll
      for (int v = 0; v < kVec; ++v) values[r][v] = 0;
      if (r < rows) LoadTyped<kVec>(matrix, type, (first + r) * stride + col, values[r]);
    }
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      if (t >= tile.count) break;
      const int64_t row = a.x_rows ? a.x_rows[tile.rows[t]] : tile.rows[t];
      float x[kVec];
      LoadRow<kVec>(a.x + row * a.x_stride + col, x);
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        squares[t] = fmaf(x[v], x[v], squares[t]);
        const float normed = __fmul_rn(x[v], weights[v]);
#pragma unroll
        for (int r = 0; r < kStep; ++r) dots[r][t] = fmaf(values[r][v], normed, dots[r][t]);
      }
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto join = [&](float value, int at) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
    if (lane == 0) parts[warp][at] = value;
  };
#pragma unroll
  for (int r = 0; r < kStep; ++r)
#pragma unroll
    for (int t = 0; t < kTile; ++t) join(dots[r][t], r * kTile + t);
#pragma unroll
  for (int t = 0; t < kTile; ++t) join(squares[t], kStep * kTile + t);
  __syncthreads();
  if (threadIdx.x < kSums) {
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += parts[w][threadIdx.x];
    sums[threadIdx.x] = total;
  }
  __syncthreads();
  if (!a.norm) return;
  if (threadIdx.x < kStep * kTile) {
    const float total = sums[kStep * kTile + static_cast<int>(threadIdx.x) % kTile];
    const float scale = 1.0f / sqrtf(total / static_cast<float>(a.cols) + a.eps) + ZeroOrNan(total);
    sums[threadIdx.x] *= scale;
  }
  __syncthreads();
}

// Which use of a mix has this place among the ranks of all; -1: none, they are rounded up.
__device__ __forceinline__ const DeviceUse& UseAt(const LowRankPlan& plan, const LowRankTile& tile, int at) {
  int use = tile.first_use;
  while (use + 1 < tile.first_use + tile.uses && plan.uses[use + 1].low_at <= at) ++use;
  return plan.uses[use];
}

// Grid: (steps of ranks of all matrices, tiles), each in turns.
template <int kVec>
__global__ void __launch_bounds__(kThreads) ShrinkKernel(const __grid_constant__ LowRankArgs a) {
  __shared__ float parts[kWarps][kSums], sums[kSums];
  const int tiles = *a.plan.tile_count;
  for (int i = static_cast<int>(blockIdx.y); i < tiles; i += static_cast<int>(gridDim.y)) {
    const LowRankTile& tile = a.plan.tiles[i];
    if (a.plain_low && tile.plain) continue;
    const int steps = tile.rank / kStep;
    for (int job = static_cast<int>(blockIdx.x); job < a.count * steps; job += static_cast<int>(gridDim.x)) {
      const int which = job / steps, at = job % steps * kStep;
      const DeviceUse& use = UseAt(a.plan, tile, at);
      const DeviceTerm& term =
          a.plan.terms[static_cast<int64_t>(use.slot) * a.plan.places + a.matrices[which].place];
      const int first = at - use.low_at, rows = min(kStep, term.rank - first);
      if (rows <= 0) continue;
      DotTile<kVec>(a, tile, term.a, term.a_type, term.a_stride, first, rows, parts, sums);
      const int r = static_cast<int>(threadIdx.x) / kTile, t = static_cast<int>(threadIdx.x) % kTile;
      if (r < rows && t < tile.count)
        a.low[tile.rows[t] * a.low_stride + which * tile.rank + at + r] = sums[threadIdx.x];
      __syncthreads();
    }
  }
}

// The matrix of a block, and its first row, of a grid with blocks of `step` rows of each matrix.
struct BlockOf {
  int which = 0, first = 0;
};
__device__ __forceinline__ BlockOf FindBlock(const LowRankArgs& a, int step) {
  auto block = static_cast<int>(blockIdx.x);
  int which = 0;
  while (which + 1 < a.count) {
    const int blocks = (a.matrices[which].rows + step - 1) / step;
    if (block < blocks) break;
    block -= blocks;
    ++which;
  }
  return {which, block * step};
}

// Grid: (blocks of rows of the matrices, tiles in turns). A thread has one row of the matrix and all rows of the tile.
__global__ void __launch_bounds__(kThreads) ExpandKernel(const __grid_constant__ LowRankArgs a) {
  __shared__ float low[kChunk][kTile];
  const BlockOf block = FindBlock(a, kThreads);
  const LowRankArgs::Matrix& m = a.matrices[block.which];
  const int row = block.first + static_cast<int>(threadIdx.x);
  const bool mine = row < m.rows;
  const int tiles = *a.plan.tile_count;
  for (int i = static_cast<int>(blockIdx.y); i < tiles; i += static_cast<int>(gridDim.y)) {
    const LowRankTile& tile = a.plan.tiles[i];
    if ((a.plain_low && tile.plain) || (tile.uses == 0 && !m.add_to && !m.bias)) continue;
    float product[kTile], sum[kTile];
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      product[t] = mine && t < tile.count ? m.product[tile.rows[t] * m.stride + row] : 0;
      sum[t] = product[t];
    }
    for (int u = tile.first_use; u < tile.first_use + tile.uses; ++u) {
      const DeviceUse& use = a.plan.uses[u];
      const DeviceTerm& term = a.plan.terms[static_cast<int64_t>(use.slot) * a.plan.places + m.place];
      if (term.rank == 0 && !term.whole && !term.row_scale && !term.shift) continue;
      float change[kTile] = {};
      for (int begin = 0; begin < term.rank; begin += kChunk) {
        const int n = min(kChunk, term.rank - begin);
        __syncthreads();
        for (int j = static_cast<int>(threadIdx.x); j < n * kTile; j += kThreads) {
          const int t = j % kTile, r = j / kTile;
          low[r][t] =
              t < tile.count
                  ? a.low[tile.rows[t] * a.low_stride + block.which * tile.rank + use.low_at + begin + r]
                  : 0;
        }
        __syncthreads();
        if (!mine) continue;
#pragma unroll 8
        for (int r = 0; r < n; ++r) {
          const float b = At(term.b, term.b_type, static_cast<int64_t>(begin + r) * m.rows + row);
#pragma unroll
          for (int t = 0; t < kTile; ++t) change[t] = fmaf(low[r][t], b, change[t]);
        }
      }
      if (!mine) continue;
      const float row_scale = term.row_scale ? term.row_scale[row] : 1,
                  shift = term.shift ? term.shift[row] : 0;
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        if (term.whole) change[t] = -product[t];  // its own product follows
        if (term.row_scale)
          change[t] = __fadd_rn(__fmul_rn(row_scale - 1, product[t]), __fmul_rn(row_scale, change[t]));
        sum[t] = fmaf(use.scale, __fadd_rn(change[t], shift), sum[t]);
      }
    }
    if (!mine) continue;
    const float bias = m.bias ? m.bias[row] : 0;
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      if (t >= tile.count) break;
      const int64_t at = tile.rows[t] * m.stride + row;
      const float total = __fadd_rn(sum[t], bias);
      if (m.add_to)
        m.add_to[at] = __fadd_rn(m.add_to[at], total);
      else
        m.product[at] = total;
    }
  }
}

// The tensor cores' kernels. A product of 16 ranks and 8 tokens: x as two bf16, its value and what that leaves, and f16 of
// an adapter likewise, which is exact.
constexpr int kMmaRanks = kLowRankStep, kPieces = kPlainCols / kWarps / 32;
constexpr int kMmaSums = kMmaRanks * kTile + kTile;
constexpr int kExpandThreads = kMmaRanks * kTile, kRowsEach = 4, kExpandRows = kExpandThreads * kRowsEach;
constexpr int kManyRows = 2048,
              kGroup = 8;  // tiles of a long batch that a block takes with the same ranks in its registers

struct Pairs {
  uint32_t high, low;
};
__device__ __forceinline__ Pairs SplitPair(float a, float b) {
  const __nv_bfloat162 high = __floats2bfloat162_rn(a, b);
  const __nv_bfloat162 low = __floats2bfloat162_rn(a - __low2float(high), b - __high2float(high));
  return {*reinterpret_cast<const uint32_t*>(&high), *reinterpret_cast<const uint32_t*>(&low)};
}

// Of two numbers of 16 bits.
template <bool kHalf>
__device__ __forceinline__ float2 Unpack2(uint32_t bits) {
  if constexpr (kHalf) return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}

// sums[0] += ranks * value of x, sums[1] += what is left.
template <bool kHalf>
__device__ __forceinline__ void MmaRanks(float (&sums)[2][4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, const Pairs& x0, const Pairs& x1) {
  if constexpr (kHalf) {
    const auto split = [](uint32_t bits) {
      const float2 two = Unpack2<true>(bits);
      return SplitPair(two.x, two.y);
    };
    const Pairs s0 = split(a0), s1 = split(a1), s2 = split(a2), s3 = split(a3);
    matvec::MmaBf16(sums[1], s0.low, s1.low, s2.low, s3.low, x0.high, x1.high);
    a0 = s0.high, a1 = s1.high, a2 = s2.high, a3 = s3.high;
  }
  matvec::MmaBf16(sums[0], a0, a1, a2, a3, x0.high, x1.high);
  matvec::MmaBf16(sums[1], a0, a1, a2, a3, x0.low, x1.low);
}

// A lane has columns 8 q to 8 q + 7 of each 32, of ranks g and g + 8 and of token g, where g and q are its number by 4
// and what that leaves. Which columns meet in one product is the same for both, which is all that matters.
struct RankPieces {
  uint4 low[kPieces], high[kPieces];
};

__device__ __forceinline__ void LoadRanks(const DeviceTerm& term, int first, int ranks, int col, int cols,
                                          RankPieces& to) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const uint16_t* const a =
      static_cast<const uint16_t*>(term.a) + static_cast<int64_t>(first + g) * term.a_stride;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int at = col + p * 32;
    to.low[p] = to.high[p] = {};
    if (at < cols && g < ranks) to.low[p] = *reinterpret_cast<const uint4*>(a + at);
    if (at < cols && g + 8 < ranks)
      to.high[p] = *reinterpret_cast<const uint4*>(a + int64_t{8} * term.a_stride + at);
  }
}

// What a warp's columns give: ranks g and g + 8 of tokens 2 q and 2 q + 1, and the squares of token g's columns.
template <bool kHalf>
__device__ __forceinline__ void MultiplyRanks(const LowRankArgs& a, const RankPieces& ranks, const float* x,
                                              int col, float* sums) {
  float4 values[kPieces][2], weights[kPieces][2];
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = col + p * 32 + i * 4;
      const bool in = at < a.cols;
      values[p][i] = in && x ? __ldcg(reinterpret_cast<const float4*>(x + at)) : float4{0, 0, 0, 0};
      weights[p][i] = in && a.norm ? *reinterpret_cast<const float4*>(a.norm + at) : float4{1, 1, 1, 1};
    }
  float products[2][4] = {}, squares = 0;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    Pairs pairs[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 v = values[p][i], w = weights[p][i];
      squares = fmaf(v.x, v.x, squares), squares = fmaf(v.y, v.y, squares);
      squares = fmaf(v.z, v.z, squares), squares = fmaf(v.w, v.w, squares);
      pairs[i * 2] = SplitPair(__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y));
      pairs[i * 2 + 1] = SplitPair(__fmul_rn(v.z, w.z), __fmul_rn(v.w, w.w));
    }
    const uint4 low = ranks.low[p], high = ranks.high[p];
    MmaRanks<kHalf>(products, low.x, high.x, low.y, high.y, pairs[0], pairs[1]);
    MmaRanks<kHalf>(products, low.z, high.z, low.w, high.w, pairs[2], pairs[3]);
  }
  squares += __shfl_xor_sync(0xffffffffu, squares, 1);
  squares += __shfl_xor_sync(0xffffffffu, squares, 2);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[(g + i / 2 * 8) * kTile + q * 2 + i % 2] = products[0][i] + products[1][i];
  if (q == 0) sums[kMmaRanks * kTile + g] = squares;
}

// Of tokens, [pieces of columns, rows, width]: A x, and the square sum of x behind it.
__device__ __forceinline__ float* PlainLow(const LowRankArgs& a, int width, int piece, int row) {
  return a.plain_low + (static_cast<int64_t>(piece) * a.rows + row) * width;
}

// Grid: (steps of ranks of all matrices in turns, pieces of columns, groups of tiles in turns).
__global__ void __launch_bounds__(kThreads, 2)
    PlainShrinkKernel(const __grid_constant__ LowRankArgs a, int width, int group) {
  __shared__ float parts[2][kWarps][kMmaSums];
  LetNextStart();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int piece = static_cast<int>(blockIdx.y),
            col = piece * kPlainCols + warp * kPieces * 32 + lane % 4 * 8;
  const int tiles = *a.plan.tile_count;
  bool waited = false;
  int turn = 0;
  for (int begin = static_cast<int>(blockIdx.z) * group; begin < tiles;
       begin += static_cast<int>(gridDim.z) * group) {
    const int end = min(begin + group, tiles);
    for (int i = begin, next = begin; i < end; i = next) {
      const LowRankTile& kind = a.plan.tiles[i];
      for (next = i + 1; next < end; ++next)
        if (a.plan.tiles[next].first_use != kind.first_use || a.plan.tiles[next].uses != kind.uses) break;
      const int steps = kind.plain ? kind.rank / kMmaRanks : 0;
      for (int job = static_cast<int>(blockIdx.x); job < a.count * steps;
           job += static_cast<int>(gridDim.x)) {
        const int which = job / steps, at = job % steps * kMmaRanks;
        const DeviceUse& use = UseAt(a.plan, kind, at);
        const DeviceTerm& term =
            a.plan.terms[static_cast<int64_t>(use.slot) * a.plan.places + a.matrices[which].place];
        const int first = at - use.low_at, ranks = min(kMmaRanks, term.rank - first);
        if (ranks <= 0) continue;
        RankPieces held;
        LoadRanks(term, first, ranks, col, a.cols, held);
        const bool half = term.a_type == LowRankType::kF16;
        if (!waited) WaitForPrevious();  // an adapter's numbers are older than this step
        waited = true;
        for (int j = i; j < next; ++j, turn ^= 1) {
          const LowRankTile& tile = a.plan.tiles[j];
          const int count = tile.count;
          const float* x = nullptr;
          if (lane / 4 < count) {
            const int row = tile.rows[lane / 4];
            x = a.x + (a.x_rows ? a.x_rows[row] : row) * a.x_stride;
          }
          float(&sums)[kWarps][kMmaSums] = parts[turn];
          half ? MultiplyRanks<true>(a, held, x, col, sums[warp])
               : MultiplyRanks<false>(a, held, x, col, sums[warp]);
          __syncthreads();  // the turn before the last has been read, too
          const int r = thread % kMmaRanks, t = thread / kMmaRanks;
          if (t < count && r < ranks) {
            float total = 0;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) total += sums[w][r * kTile + t];
            PlainLow(a, width, piece, tile.rows[t])[which * kind.rank + at + r] = total;
          }
          // Every step of ranks has the same squares.
          const int s = thread - kMmaRanks * kTile;
          if (s >= 0 && s < count) {
            float total = 0;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) total += sums[w][kMmaRanks * kTile + s];
            PlainLow(a, width, piece, tile.rows[s])[width - 1] = total;
          }
        }
      }
    }
  }
  if (!waited) WaitForPrevious();  // what follows relies on the end of what was before
}

// change += B's rows of 16 ranks * low: those that an adapter has not are zeros.
template <bool kHalf>
__device__ __forceinline__ void AddRanks(const uint2 (&b)[kMmaRanks], const float (&low)[kMmaRanks][kTile],
                                         float (&change)[kTile][kRowsEach]) {
#pragma unroll
  for (int r = 0; r < kMmaRanks; ++r) {
    const float2 front = Unpack2<kHalf>(b[r].x), back = Unpack2<kHalf>(b[r].y);
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      change[t][0] = fmaf(low[r][t], front.x, change[t][0]);
      change[t][1] = fmaf(low[r][t], front.y, change[t][1]);
      change[t][2] = fmaf(low[r][t], back.x, change[t][2]);
      change[t][3] = fmaf(low[r][t], back.y, change[t][3]);
    }
  }
}

// What a thread has: four rows of a matrix, from `row` on, of all tokens of a tile.
using TileRows = float[kTile][kRowsEach];

// The product, and what stands beside it.
__device__ __forceinline__ void LoadProduct(const LowRankArgs::Matrix& m, const LowRankTile& tile, int row,
                                            TileRows& sum) {
  const bool mine = row < m.rows;
  float4 bias = {0, 0, 0, 0};
  if (mine && m.bias) bias = *reinterpret_cast<const float4*>(m.bias + row);
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    float4 v = {0, 0, 0, 0}, to = {0, 0, 0, 0};
    if (mine && t < tile.count) {
      const int64_t at = tile.rows[t] * m.stride + row;
      v = __ldcg(reinterpret_cast<const float4*>(m.product + at));
      if (m.add_to) to = __ldcg(reinterpret_cast<const float4*>(m.add_to + at));
    }
    sum[t][0] = v.x + bias.x + to.x, sum[t][1] = v.y + bias.y + to.y;
    sum[t][2] = v.z + bias.z + to.z, sum[t][3] = v.w + bias.w + to.w;
  }
}

// By the whole block.
__device__ __forceinline__ void AddPlainTerms(const LowRankArgs& a, int which, const LowRankTile& tile,
                                              int row, int width, int pieces, float (&low)[kMmaRanks][kTile],
                                              TileRows& sum) {
  const LowRankArgs::Matrix& m = a.matrices[which];
  const bool mine = row < m.rows;
  for (int u = tile.first_use; u < tile.first_use + tile.uses; ++u) {
    const DeviceUse use = a.plan.uses[u];
    const DeviceTerm& term = a.plan.terms[static_cast<int64_t>(use.slot) * a.plan.places + m.place];
    const int rank = term.rank;
    if (rank == 0) continue;
    const bool half = term.b_type == LowRankType::kF16;
    TileRows change = {};
    for (int begin = 0; begin < rank; begin += kMmaRanks) {
      const int n = min(kMmaRanks, rank - begin);
      const uint16_t* const from =
          static_cast<const uint16_t*>(term.b) + static_cast<int64_t>(begin) * m.rows + row;
      uint2 b[kMmaRanks];
#pragma unroll
      for (int r = 0; r < kMmaRanks; ++r)
        b[r] = mine && r < n ? *reinterpret_cast<const uint2*>(from + static_cast<int64_t>(r) * m.rows)
                             : uint2{0, 0};
      const int r = static_cast<int>(threadIdx.x) % kMmaRanks, t = static_cast<int>(threadIdx.x) / kMmaRanks;
      float total = 0, squares = 0;
      if (r < n && t < tile.count) {
        const float* const at = PlainLow(a, width, 0, tile.rows[t]);
        const int64_t apart = static_cast<int64_t>(a.rows) * width;
        const int place = which * tile.rank + use.low_at + begin + r;
#pragma unroll 4
        for (int p = 0; p < pieces; ++p) {
          total += __ldcg(at + p * apart + place);
          if (a.norm) squares += __ldcg(at + p * apart + width - 1);
        }
        if (a.norm) total *= 1.0f / sqrtf(squares / static_cast<float>(a.cols) + a.eps) + ZeroOrNan(squares);
      }
      __syncthreads();  // the ranks before have been read
      low[r][t] = total;
      __syncthreads();
      half ? AddRanks<true>(b, low, change) : AddRanks<false>(b, low, change);
    }
#pragma unroll
    for (int t = 0; t < kTile; ++t)
#pragma unroll
      for (int v = 0; v < kRowsEach; ++v) sum[t][v] = fmaf(use.scale, change[t][v], sum[t][v]);
  }
}

// Grid: (blocks of rows of the matrices, tiles in turns).
__global__ void __launch_bounds__(kExpandThreads, 3)
    PlainExpandKernel(const __grid_constant__ LowRankArgs a, int width, int pieces) {
  __shared__ __align__(16) float low[kMmaRanks][kTile];
  LetNextStart();
  const BlockOf block = FindBlock(a, kExpandRows);
  const LowRankArgs::Matrix& m = a.matrices[block.which];
  const int row = block.first + static_cast<int>(threadIdx.x) * kRowsEach;
  const int tiles = *a.plan.tile_count;
  WaitForPrevious();
  for (int i = static_cast<int>(blockIdx.y); i < tiles; i += static_cast<int>(gridDim.y)) {
    const LowRankTile& tile = a.plan.tiles[i];
    if (!tile.plain || (tile.uses == 0 && !m.add_to && !m.bias)) continue;
    TileRows sum;
    LoadProduct(m, tile, row, sum);
    AddPlainTerms(a, block.which, tile, row, width, pieces, low, sum);
    if (row >= m.rows) continue;
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      if (t >= tile.count) break;
      *reinterpret_cast<float4*>((m.add_to ? m.add_to : m.product) + tile.rows[t] * m.stride + row) = {
          sum[t][0], sum[t][1], sum[t][2], sum[t][3]};
    }
  }
}

// Grid: (blocks of rows of one of both matrices, tiles in turns). kSilu: known here, as it is written out for each number.
template <bool kSilu>
__global__ void __launch_bounds__(kExpandThreads, 2)
    PlainActivateKernel(const __grid_constant__ LowRankArgs a, const LowRankActivation to, int width,
                        int pieces) {
  __shared__ __align__(16) float low[kMmaRanks][kTile];
  LetNextStart();
  const int row = static_cast<int>(blockIdx.x) * kExpandRows + static_cast<int>(threadIdx.x) * kRowsEach;
  const LowRankArgs::Matrix& m = a.matrices[0];
  const int tiles = *a.plan.tile_count;
  WaitForPrevious();
  for (int i = static_cast<int>(blockIdx.y); i < tiles; i += static_cast<int>(gridDim.y)) {
    const LowRankTile& tile = a.plan.tiles[i];
    TileRows up, gate;
    LoadProduct(m, tile, row, up);
    LoadProduct(a.matrices[1], tile, row, gate);
    AddPlainTerms(a, 0, tile, row, width, pieces, low, up);
    AddPlainTerms(a, 1, tile, row, width, pieces, low, gate);
    if (row >= m.rows) continue;
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      if (t >= tile.count) break;
      float v[kRowsEach];
#pragma unroll
      for (int j = 0; j < kRowsEach; ++j)
        v[j] = matvec::ActivateMul(kSilu ? DeviceActivation::kSilu : to.activation, kSilu ? 0.0f : to.limit,
                                   gate[t][j], up[t][j]);
      const int64_t at = tile.rows[t] * m.stride + row;
      *reinterpret_cast<float4*>(to.out + at) = {v[0], v[1], v[2], v[3]};
      if (!to.out_bf16) continue;
      const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v[0], v[1]), __floats2bfloat162_rn(v[2], v[3])};
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(to.out_bf16) + at) = {
          *reinterpret_cast<const uint32_t*>(&pairs[0]), *reinterpret_cast<const uint32_t*>(&pairs[1])};
    }
  }
}

// Grid: (steps of rows of the matrices, tiles in turns).
template <int kVec>
__global__ void __launch_bounds__(kThreads) WholeKernel(const __grid_constant__ LowRankArgs a) {
  __shared__ float parts[kWarps][kSums], sums[kSums];
  const BlockOf block = FindBlock(a, kStep);
  const LowRankArgs::Matrix& m = a.matrices[block.which];
  const int tiles = *a.plan.tile_count, rows = min(kStep, m.rows - block.first);
  for (int i = static_cast<int>(blockIdx.y); i < tiles; i += static_cast<int>(gridDim.y)) {
    const LowRankTile& tile = a.plan.tiles[i];
    for (int u = tile.first_use; u < tile.first_use + tile.uses; ++u) {
      const DeviceUse& use = a.plan.uses[u];
      const DeviceTerm& term = a.plan.terms[static_cast<int64_t>(use.slot) * a.plan.places + m.place];
      if (!term.whole) continue;
      DotTile<kVec>(a, tile, term.whole, term.whole_type, term.whole_stride, block.first, rows, parts, sums);
      const int r = static_cast<int>(threadIdx.x) / kTile, t = static_cast<int>(threadIdx.x) % kTile;
      if (r < rows && t < tile.count) {
        const int row = block.first + r;
        float* const to = (m.add_to ? m.add_to : m.product) + tile.rows[t] * m.stride + row;
        const float value = __fmul_rn(term.row_scale ? term.row_scale[row] : 1.0f, sums[threadIdx.x]);
        *to = fmaf(use.scale, value, *to);
      }
      __syncthreads();
    }
  }
}

// Grid: (blocks of columns, tiles in turns).
__global__ void __launch_bounds__(kThreads) EmbedTermsKernel(const __grid_constant__ LowRankEmbedArgs a) {
  const int col = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x),
            cols = a.table.cols;
  if (col >= cols) return;
  const int tiles = *a.plan.tile_count;
  for (int i = static_cast<int>(blockIdx.y); i < tiles; i += static_cast<int>(gridDim.y)) {
    const LowRankTile& tile = a.plan.tiles[i];
    for (int t = 0; t < tile.count; ++t) {
      const int token = a.tokens[tile.rows[t]];
      float* const out = a.out + static_cast<int64_t>(tile.rows[t]) * cols + col;
      float sum = 0;
      bool any = false;
      for (int u = tile.first_use; u < tile.first_use + tile.uses; ++u) {
        const DeviceUse& use = a.plan.uses[u];
        const DeviceTerm& term = a.plan.terms[static_cast<int64_t>(use.slot) * a.plan.places + a.place];
        if (term.rank == 0 && !term.whole) continue;
        any = true;
        float change = 0;
        for (int r = 0; r < term.rank; ++r)
          change =
              fmaf(__fmul_rn(At(term.a, term.a_type, static_cast<int64_t>(token) * term.rank + r), a.scale),
                   At(term.b, term.b_type, static_cast<int64_t>(r) * cols + col), change);
        if (term.whole)
          change = __fsub_rn(__fmul_rn(At(term.whole, term.whole_type,
                                          static_cast<int64_t>(token) * term.whole_stride + col),
                                       a.scale),
                             __fmul_rn(Element(a.table, token, col), a.scale));
        sum = fmaf(use.scale, change, sum);
      }
      if (any) *out = __fadd_rn(*out, sum);
    }
  }
}

// Tiles of a batch have no more blocks than this: further ones take their turn. Mixes that fill their tiles badly are few.
unsigned TileBlocks(int rows) {
  return static_cast<unsigned>(std::min(rows, (rows + kTile - 1) / kTile + 8));
}

unsigned RowBlocks(const LowRankArgs& args, int step) {
  int blocks = 0;
  for (int i = 0; i < args.count; ++i)
    blocks += (args.matrices[static_cast<size_t>(i)].rows + step - 1) / step;
  return static_cast<unsigned>(blocks);
}

// Not Launch() of launch.cuh: these kernels do not say when they need what was before.
template <class Args>
cudaError_t LaunchWhenDone(void (*kernel)(Args), dim3 grid, cudaStream_t stream, const Args& args) {
  cudaLaunchAttribute carveout;  // that of all kernels
  carveout.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  carveout.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &carveout;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

// Whether rows can be read four at a time. Strides of the terms are the caller's, padded.
bool InFours(const LowRankArgs& args) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return args.cols % 4 == 0 && args.x_stride % 4 == 0 && aligned(args.x) && aligned(args.norm);
}

// Whether plain tiles go to the tensor cores: by the product alone, not by the batch.
bool RunsPlain(const LowRankArgs& args) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  bool runs = args.plain_low && args.cols % 8 == 0 && InFours(args) &&
              int64_t{PlainPieces(args.cols)} * PlainWidth(args.count) <= args.plain_room;
  for (int i = 0; i < args.count; ++i) {
    const LowRankArgs::Matrix& m = args.matrices[static_cast<size_t>(i)];
    runs = runs && m.rows % kRowsEach == 0 && m.stride % 4 == 0 && aligned(m.product) && aligned(m.bias) &&
           aligned(m.add_to);
  }
  return runs;
}

// As the other kernels have them: without what says that some tiles are not theirs, if all are.
LowRankArgs OfOthers(LowRankArgs args) {
  if (!RunsPlain(args)) args.plain_low = nullptr;
  return args;
}

}  // namespace

cudaError_t LaunchLowRankShrink(const LowRankArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.count == 0) return cudaSuccess;
  const bool plain = RunsPlain(args);
  if (plain && args.most_plain_rank > 0) {
    const int group = args.rows > kManyRows ? kGroup : 1,
              steps = (args.most_plain_rank + kMmaRanks - 1) / kMmaRanks;
    const unsigned groups =
        (TileBlocks(args.rows) + static_cast<unsigned>(group) - 1) / static_cast<unsigned>(group);
    const dim3 grid(static_cast<unsigned>(args.count * steps), static_cast<unsigned>(PlainPieces(args.cols)),
                    groups);
    if (const cudaError_t code =
            Launch(PlainShrinkKernel, grid, dim3(kThreads), 0, stream, args, PlainWidth(args.count), group);
        code != cudaSuccess)
      return code;
  }
  if ((plain && !args.others) || args.most_rank == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.count * ((args.most_rank + kStep - 1) / kStep)),
                  TileBlocks(args.rows));
  return LaunchWhenDone(InFours(args) ? ShrinkKernel<4> : ShrinkKernel<1>, grid, stream, OfOthers(args));
}

cudaError_t LaunchLowRankExpand(const LowRankArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.count == 0) return cudaSuccess;
  const bool plain = RunsPlain(args);
  if (plain)
    if (const cudaError_t code =
            Launch(PlainExpandKernel, dim3(RowBlocks(args, kExpandRows), TileBlocks(args.rows)),
                   dim3(kExpandThreads), 0, stream, args, PlainWidth(args.count), PlainPieces(args.cols));
        code != cudaSuccess)
      return code;
  if (plain && !args.others) return cudaSuccess;
  return LaunchWhenDone(ExpandKernel, dim3(RowBlocks(args, kThreads), TileBlocks(args.rows)), stream,
                        OfOthers(args));
}

bool LowRankActivates(const LowRankArgs& args) {
  const LowRankArgs::Matrix &up = args.matrices[0], &gate = args.matrices[1];
  return args.count == 2 && up.rows == gate.rows && up.stride == gate.stride && !up.add_to && !gate.add_to &&
         !args.others && RunsPlain(args);
}

cudaError_t LaunchLowRankExpandActivate(const LowRankArgs& args, const LowRankActivation& to,
                                        cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((args.matrices[0].rows + kExpandRows - 1) / kExpandRows),
                  TileBlocks(args.rows));
  const bool silu = to.activation == DeviceActivation::kSilu && to.limit == 0;
  return Launch(silu ? PlainActivateKernel<true> : PlainActivateKernel<false>, grid, dim3(kExpandThreads), 0,
                stream, args, to, PlainWidth(args.count), PlainPieces(args.cols));
}

cudaError_t LaunchLowRankWhole(const LowRankArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.count == 0) return cudaSuccess;
  return LaunchWhenDone(InFours(args) ? WholeKernel<4> : WholeKernel<1>,
                        dim3(RowBlocks(args, kStep), TileBlocks(args.rows)), stream, args);
}

cudaError_t LaunchLowRankEmbed(const LowRankEmbedArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((args.table.cols + kThreads - 1) / kThreads);
  return LaunchWhenDone(EmbedTermsKernel, dim3(blocks, TileBlocks(args.rows)), stream, args);
}

}  // namespace celer::cuda
