// Eight blocks in a cluster have a tile of up to eight tokens: each makes A x of an eighth of the columns and gives it to
// the others, and has an eighth of the matrices' rows for B.
#include "kernels/llm/delta_rule/cluster.cuh"
#include "kernels/llm/low_rank/low_rank_beside_cuda.h"
#include "kernels/llm/low_rank/low_rank_mma.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_ptx.cuh"

namespace celer::cuda {
namespace low_rank {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kBlocks = kMostInCluster;
constexpr int kSums = kMmaRanks * kTile;               // of a job: sixteen ranks of a matrix, eight tokens
constexpr int kMostJobs = 3 * kPlainRank / kMmaRanks;  // of a product
constexpr int kHalfTile = kTile / 2;                   // tokens of a thread in the expansion

// kJobs at once.
template <int kJobs>
struct Memory {
  float parts[kWarps][kJobs][kSums];
  float of_blocks[2][kBlocks][kJobs][kSums];  // in turns
  alignas(16) float low[kMostJobs][kMmaRanks][kTile];
};

struct Job {
  const uint16_t* a = nullptr;     // of rank g of a lane; none: there is no such rank
  const uint16_t* next = nullptr;  // of rank g + 8
  bool half = false;
};

__device__ __forceinline__ const DeviceTerm& TermOf(const LowRankBesideArgs& a, const DeviceUse& use,
                                                    int which) {
  return a.plan.terms[static_cast<int64_t>(use.slot) * a.plan.places + a.matrices[which].place];
}

__device__ __forceinline__ Job FindJob(const LowRankBesideArgs& a, const LowRankTile& tile, int number,
                                       int steps, int g) {
  const int which = number / steps, at = number % steps * kMmaRanks;
  const DeviceUse& use = UseAt(a.plan, tile, at);
  const DeviceTerm& term = TermOf(a, use, which);
  const int first = at - use.low_at, ranks = term.rank - first;
  const uint16_t* const from =
      static_cast<const uint16_t*>(term.a) + static_cast<int64_t>(first + g) * term.a_stride;
  Job job;
  job.half = term.a_type == LowRankType::kF16;
  if (g < ranks) job.a = from;
  if (g + 8 < ranks) job.next = from + int64_t{8} * term.a_stride;
  return job;
}

__device__ __forceinline__ uint4 Load8(const uint16_t* from, int col, bool in) {
  return from && in ? __ldg(reinterpret_cast<const uint4*>(from + col)) : uint4{0, 0, 0, 0};
}

// As in low_rank_plain_cuda.cu, where x is bf16: which columns of 32 meet in one product is the same for both.
__device__ __forceinline__ void MultiplyEight(float (&sums)[4], uint4 a, uint4 next, const uint4& x,
                                              bool half) {
  if (half) {
    uint32_t* const words[8] = {&a.x, &next.x, &a.y, &next.y, &a.z, &next.z, &a.w, &next.w};
    uint32_t left[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 two = Unpack2<true>(*words[i]);
      const Pairs split = SplitPair(two.x, two.y);
      *words[i] = split.high;
      left[i] = split.low;
    }
    matvec::MmaBf16(sums, left[0], left[1], left[2], left[3], x.x, x.y);
    matvec::MmaBf16(sums, left[4], left[5], left[6], left[7], x.z, x.w);
  }
  matvec::MmaBf16(sums, a.x, next.x, a.y, next.y, x.x, x.y);
  matvec::MmaBf16(sums, a.z, next.z, a.w, next.w, x.z, x.w);
}

// A x of a tile into memory.low, by all blocks of the cluster. kAhead: pieces of 32 columns of a warp that are loaded
// together. `turn` and `met` go on from one tile to the next.
template <int kJobs, int kAhead>
__device__ __forceinline__ void MakeLow(const LowRankBesideArgs& a, const LowRankTile& tile,
                                        Memory<kJobs>& memory, int& turn, bool& met) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4,
            q = lane % 4, block = static_cast<int>(blockIdx.x);
  __syncwarp();
  const int steps = tile.rank / kMmaRanks, jobs = a.count * steps;
  const uint16_t* const x =
      g < tile.count ? static_cast<const uint16_t*>(a.x) + tile.rows[g] * a.x_stride : nullptr;
  for (int first = 0; first < jobs; first += kJobs, turn ^= 1) {
    const int n = min(kJobs, jobs - first);
    Job job[kJobs];
#pragma unroll
    for (int j = 0; j < kJobs; ++j)
      if (j < n) job[j] = FindJob(a, tile, first + j, steps, g);
    float sums[kJobs][4] = {};
    constexpr int kApart = kBlocks * kWarps * 32;  // columns from a warp's piece to its next one
    for (int begin = (block * kWarps + warp) * 32 + q * 8; begin - q * 8 < a.cols; begin += kAhead * kApart) {
      uint4 values[kAhead], low[kAhead][kJobs], high[kAhead][kJobs];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int col = begin + i * kApart;
        const bool in = col < a.cols;
        values[i] = x && in ? __ldcg(reinterpret_cast<const uint4*>(x + col)) : uint4{0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < kJobs; ++j)
          low[i][j] = Load8(job[j].a, col, in), high[i][j] = Load8(job[j].next, col, in);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
#pragma unroll
        for (int j = 0; j < kJobs; ++j)
          if (j < n) MultiplyEight(sums[j], low[i][j], high[i][j], values[i], job[j].half);
    }
#pragma unroll
    for (int j = 0; j < kJobs; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) memory.parts[warp][j][(g + i / 2 * 8) * kTile + q * 2 + i % 2] = sums[j][i];
    __syncthreads();
    if (!met) ClusterWait();  // the others have begun
    met = true;
    for (int k = thread; k < n * kSums; k += kThreads) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += memory.parts[w][k / kSums][k % kSums];
#pragma unroll
      for (int to = 0; to < kBlocks; ++to)
        StoreInCluster(&memory.of_blocks[turn][block][k / kSums][k % kSums], to, total);
    }
    ClusterArrive();
    ClusterWait();
    for (int k = thread; k < n * kSums; k += kThreads) {
      float total = 0;
#pragma unroll
      for (int from = 0; from < kBlocks; ++from) total += memory.of_blocks[turn][from][k / kSums][k % kSums];
      memory.low[first + k / kSums][k % kSums / kTile][k % kTile] = total;
    }
  }
  __syncthreads();
}

// Four rows of a matrix, from `row` on, of half of a tile's tokens.
using Rows = float[kHalfTile][kRowsEach];

// += the terms of that.
template <int kJobs>
__device__ __forceinline__ void AddTerms(const LowRankBesideArgs& a, const LowRankTile& tile, int which,
                                         int row, int half_tile, const Memory<kJobs>& memory, Rows& sum) {
  const int steps = tile.rank / kMmaRanks;
  for (int u = tile.first_use; u < tile.first_use + tile.uses; ++u) {
    const DeviceUse use = a.plan.uses[u];
    const DeviceTerm& term = TermOf(a, use, which);
    const bool half = term.b_type == LowRankType::kF16;
    Rows change = {};
    for (int begin = 0; begin < term.rank; begin += kMmaRanks) {
      const int n = min(kMmaRanks, term.rank - begin);
      const uint16_t* const from =
          static_cast<const uint16_t*>(term.b) + static_cast<int64_t>(begin) * term.b_stride + row;
      uint2 b[kMmaRanks];
#pragma unroll
      for (int r = 0; r < kMmaRanks; ++r)
        b[r] = r < n ? __ldg(reinterpret_cast<const uint2*>(from + static_cast<int64_t>(r) * term.b_stride))
                     : uint2{0, 0};
      const float(*const low)[kTile] = memory.low[which * steps + (use.low_at + begin) / kMmaRanks];
#pragma unroll
      for (int r = 0; r < kMmaRanks; ++r) {
        const float2 front = half ? Unpack2<true>(b[r].x) : Unpack2<false>(b[r].x),
                     back = half ? Unpack2<true>(b[r].y) : Unpack2<false>(b[r].y);
        const float4 by = *reinterpret_cast<const float4*>(&low[r][half_tile * kHalfTile]);
        const float of_tokens[kHalfTile] = {by.x, by.y, by.z, by.w};
#pragma unroll
        for (int t = 0; t < kHalfTile; ++t) {
          change[t][0] = fmaf(of_tokens[t], front.x, change[t][0]);
          change[t][1] = fmaf(of_tokens[t], front.y, change[t][1]);
          change[t][2] = fmaf(of_tokens[t], back.x, change[t][2]);
          change[t][3] = fmaf(of_tokens[t], back.y, change[t][3]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kHalfTile; ++t)
#pragma unroll
      for (int v = 0; v < kRowsEach; ++v) sum[t][v] = fmaf(use.scale, change[t][v], sum[t][v]);
  }
}

// A cluster's share of some fours of rows, twice: for the halves of a tile. That of thread k of this block is At(k).
struct Share {
  int first, count;
  __device__ __forceinline__ explicit Share(int fours)
      : first(static_cast<int>(int64_t{fours} * blockIdx.x / kBlocks)),
        count(static_cast<int>(int64_t{fours} * (blockIdx.x + 1) / kBlocks) - first) {}
  __device__ __forceinline__ int items() const { return 2 * count; }
  __device__ __forceinline__ int Four(int k) const { return first + (k < count ? k : k - count); }
  __device__ __forceinline__ int Half(int k) const { return k < count ? 0 : 1; }
};

// Lines of B on their way into L2 while A x is made.
__device__ __forceinline__ void FetchTerms(const LowRankBesideArgs& a, const LowRankTile& tile, int which,
                                           int row) {
  for (int u = tile.first_use; u < tile.first_use + tile.uses; ++u) {
    const DeviceTerm& term = TermOf(a, a.plan.uses[u], which);
    const uint16_t* const from = static_cast<const uint16_t*>(term.b) + row;
    for (int r = 0; r < term.rank; ++r) matvec::PrefetchLine(from + static_cast<int64_t>(r) * term.b_stride);
  }
}

// Grid: (blocks of a cluster, tiles in turns).
template <int kJobs, int kAhead>
__global__ void __launch_bounds__(kThreads) BesideKernel(const __grid_constant__ LowRankBesideArgs a) {
  __shared__ Memory<kJobs> memory;
  LetNextStart();
  const int tiles = *a.plan.tile_count;
  if (static_cast<int>(blockIdx.y) >= tiles) return WaitForPrevious();  // and with it the whole cluster
  ClusterArrive();
  bool met = false;
  int fours = 0, turn = 0;
  for (int m = 0; m < a.count; ++m) fours += a.matrices[m].rows / kRowsEach;
  const Share share(fours);
  // The matrix, and its row, of a four.
  const auto place = [&](int four) {
    int which = 0;
    while (which + 1 < a.count && four >= a.matrices[which].rows / kRowsEach)
      four -= a.matrices[which++].rows / kRowsEach;
    return int2{which, four * kRowsEach};
  };
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = static_cast<int>(blockIdx.y); i < tiles; i += static_cast<int>(gridDim.y)) {
    const LowRankTile& tile = a.plan.tiles[i];
    if (tile.uses == 0) continue;
    const auto load = [&](int k, Rows& sum) {
      const int2 at = place(share.Four(k));
      const LowRankBesideArgs::Matrix& m = a.matrices[at.x];
#pragma unroll
      for (int t = 0; t < kHalfTile; ++t) {
        const int token = share.Half(k) * kHalfTile + t;
        float4 v = {0, 0, 0, 0};
        if (token < tile.count)
          v = __ldcg(reinterpret_cast<const float4*>(static_cast<const float*>(m.product) +
                                                     tile.rows[token] * m.stride + at.y));
        sum[t][0] = v.x, sum[t][1] = v.y, sum[t][2] = v.z, sum[t][3] = v.w;
      }
    };
    for (int k = thread; k < share.count; k += kThreads) {
      const int2 at = place(share.Four(k));
      if (thread % 16 == 0) FetchTerms(a, tile, at.x, at.y);  // a line has that many fours
    }
    WaitForPrevious();
    Rows ahead;
    if (thread < share.items()) load(thread, ahead);
    MakeLow<kJobs, kAhead>(a, tile, memory, turn, met);
    for (int k = thread; k < share.items(); k += kThreads) {
      const int2 at = place(share.Four(k));
      const LowRankBesideArgs::Matrix& m = a.matrices[at.x];
      Rows sum;
      if (k == thread) {
#pragma unroll
        for (int t = 0; t < kHalfTile; ++t)
#pragma unroll
          for (int v = 0; v < kRowsEach; ++v) sum[t][v] = ahead[t][v];
      } else {
        load(k, sum);
      }
      AddTerms(a, tile, at.x, at.y, share.Half(k), memory, sum);
#pragma unroll
      for (int t = 0; t < kHalfTile; ++t) {
        const int token = share.Half(k) * kHalfTile + t;
        if (token >= tile.count) break;
        *reinterpret_cast<float4*>(static_cast<float*>(m.product) + tile.rows[token] * m.stride + at.y) = {
            sum[t][0], sum[t][1], sum[t][2], sum[t][3]};
      }
    }
  }
  __syncwarp();
  if (!met) ClusterWait();
  WaitForPrevious();  // what follows relies on the end of what was before
}

// Grid: likewise. kSilu: known here, as it is written out for each number.
template <bool kSilu>
__global__ void __launch_bounds__(kThreads)
    BesideActivateKernel(const __grid_constant__ LowRankBesideArgs a, const LowRankBesideActivation to) {
  constexpr int kJobs = 2, kAhead = 2;
  __shared__ Memory<kJobs> memory;
  LetNextStart();
  const int tiles = *a.plan.tile_count;
  if (static_cast<int>(blockIdx.y) >= tiles) return WaitForPrevious();
  ClusterArrive();
  bool met = false;
  int turn = 0;
  const Share share(a.matrices[0].rows / kRowsEach);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = static_cast<int>(blockIdx.y); i < tiles; i += static_cast<int>(gridDim.y)) {
    const LowRankTile& tile = a.plan.tiles[i];
    const auto load = [&](int k, int which, Rows& sum) {
      const LowRankBesideArgs::Matrix& m = a.matrices[which];
#pragma unroll
      for (int t = 0; t < kHalfTile; ++t) {
        const int token = share.Half(k) * kHalfTile + t;
        uint2 bits = {0, 0};
        if (token < tile.count)
          bits =
              __ldcg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(m.product) +
                                                    tile.rows[token] * m.stride + share.Four(k) * kRowsEach));
        const float2 front = Unpack2<false>(bits.x), back = Unpack2<false>(bits.y);
        sum[t][0] = front.x, sum[t][1] = front.y, sum[t][2] = back.x, sum[t][3] = back.y;
      }
    };
    for (int k = thread; k < share.count; k += kThreads)
      if (thread % 16 == 0)
        for (int which = 0; which < 2; ++which) FetchTerms(a, tile, which, share.Four(k) * kRowsEach);
    WaitForPrevious();
    if (tile.uses > 0) MakeLow<kJobs, kAhead>(a, tile, memory, turn, met);
    for (int k = thread; k < share.items(); k += kThreads) {
      const int row = share.Four(k) * kRowsEach;
      Rows up, gate;
      load(k, 0, up);
      load(k, 1, gate);
      AddTerms(a, tile, 0, row, share.Half(k), memory, up);
      AddTerms(a, tile, 1, row, share.Half(k), memory, gate);
#pragma unroll
      for (int t = 0; t < kHalfTile; ++t) {
        const int token = share.Half(k) * kHalfTile + t;
        if (token >= tile.count) break;
        float v[kRowsEach];
#pragma unroll
        for (int j = 0; j < kRowsEach; ++j)
          v[j] = matvec::ActivateMul(kSilu ? DeviceActivation::kSilu : to.activation, kSilu ? 0.0f : to.limit,
                                     gate[t][j], up[t][j]);
        *reinterpret_cast<uint2*>(static_cast<uint16_t*>(to.out) + tile.rows[token] * to.out_stride + row) = {
            matvec::PackBf16(v[0], v[1]), matvec::PackBf16(v[2], v[3])};
      }
    }
  }
  __syncwarp();
  if (!met) ClusterWait();
  WaitForPrevious();
}

dim3 GridOf(const LowRankBesideArgs& args) {
  return {static_cast<unsigned>(kBlocks), TileBlocks(args.rows)};
}

}  // namespace
}  // namespace low_rank

using namespace low_rank;

bool LowRankBesideRuns() {
  return HopperCode();
}

cudaError_t LaunchLowRankBeside(const LowRankBesideArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.count == 0) return cudaSuccess;
  return LaunchInClusters(args.count == 1 ? BesideKernel<1, 4> : BesideKernel<3, 2>, GridOf(args), kBlocks,
                          dim3(kThreads), stream, args);
}

cudaError_t LaunchLowRankBesideActivate(const LowRankBesideArgs& args, const LowRankBesideActivation& to,
                                        cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const bool silu = to.activation == DeviceActivation::kSilu && to.limit == 0;
  return LaunchInClusters(silu ? BesideActivateKernel<true> : BesideActivateKernel<false>, GridOf(args),
                          kBlocks, dim3(kThreads), stream, args, to);
}

}  // namespace celer::cuda
