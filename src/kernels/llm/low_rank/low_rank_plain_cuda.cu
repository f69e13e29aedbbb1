// Terms of A and B alone, in 16 bits, on the tensor cores.
#include "kernels/llm/low_rank/low_rank_device.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_ptx.cuh"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda {
namespace low_rank {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The tensor cores' kernels. A product of 16 ranks and 8 tokens: x as two bf16, its value and what that leaves, and f16 of
// an adapter likewise, which is exact.
constexpr int kMmaRanks = kLowRankStep, kPieces = kPlainCols / kWarps / 32;
constexpr int kMmaSums = kMmaRanks * kTile + kTile;
constexpr int kExpandThreads = kMmaRanks * kTile, kExpandRows = kExpandThreads * kRowsEach;
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

// Whether tiles have the same adapters, of the same expert.
__device__ __forceinline__ bool SameTerms(const LowRankTile& a, const LowRankTile& b) {
  return a.first_use == b.first_use && a.uses == b.uses && a.expert == b.expert;
}

// Grid: (steps of ranks of all matrices in turns, pieces of columns, groups of tiles in turns).
__global__ void __launch_bounds__(kThreads, 2)
    PlainShrinkKernel(const __grid_constant__ LowRankArgs a, int width, int group) {
  __shared__ float parts[2][kWarps][kMmaSums];
  LetNextStart();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int piece = static_cast<int>(blockIdx.y),
            col = piece * kPlainCols + warp * kPieces * 32 + lane % 4 * 8;
  bool waited = a.plan.late;
  if (waited) WaitForPrevious();
  const int tiles = *a.plan.tile_count;
  int turn = 0;
  for (int begin = static_cast<int>(blockIdx.z) * group; begin < tiles;
       begin += static_cast<int>(gridDim.z) * group) {
    const int end = min(begin + group, tiles);
    for (int i = begin, next = begin; i < end; i = next) {
      const LowRankTile& kind = a.plan.tiles[i];
      for (next = i + 1; next < end; ++next)
        if (!SameTerms(a.plan.tiles[next], kind)) break;
      const int steps = kind.plain ? kind.rank / kMmaRanks : 0;
      for (int job = static_cast<int>(blockIdx.x); job < a.count * steps;
           job += static_cast<int>(gridDim.x)) {
        const int which = job / steps, at = job % steps * kMmaRanks;
        const DeviceUse& use = UseAt(a.plan, kind, at);
        const DeviceTerm& term = TermOf(a.plan, kind, use, a.matrices[which]);
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
  if (mine && m.bias) bias = *reinterpret_cast<const float4*>(BiasOf(tile, m) + row);
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
    const DeviceTerm& term = TermOf(a.plan, tile, use, m);
    const int rank = term.rank;
    if (rank == 0) continue;
    const bool half = term.b_type == LowRankType::kF16;
    TileRows change = {};
    for (int begin = 0; begin < rank; begin += kMmaRanks) {
      const int n = min(kMmaRanks, rank - begin);
      const uint16_t* const from =
          static_cast<const uint16_t*>(term.b) + static_cast<int64_t>(begin) * term.b_stride + row;
      uint2 b[kMmaRanks];
#pragma unroll
      for (int r = 0; r < kMmaRanks; ++r)
        b[r] = mine && r < n ? *reinterpret_cast<const uint2*>(from + static_cast<int64_t>(r) * term.b_stride)
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
  WaitForPrevious();
  const int tiles = *a.plan.tile_count;
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
  WaitForPrevious();
  const int tiles = *a.plan.tile_count;
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

}  // namespace

cudaError_t LaunchPlainShrink(const LowRankArgs& args, cudaStream_t stream) {
  const int group = args.rows > kManyRows ? kGroup : 1,
            steps = (args.most_plain_rank + kMmaRanks - 1) / kMmaRanks;
  const unsigned groups =
      (TileBlocks(args.rows) + static_cast<unsigned>(group) - 1) / static_cast<unsigned>(group);
  const dim3 grid(static_cast<unsigned>(args.count * steps), static_cast<unsigned>(PlainPieces(args.cols)),
                  groups);
  return Launch(PlainShrinkKernel, grid, dim3(kThreads), 0, stream, args, PlainWidth(args.count), group);
}

cudaError_t LaunchPlainExpand(const LowRankArgs& args, cudaStream_t stream) {
  return Launch(PlainExpandKernel, dim3(RowBlocks(args, kExpandRows), TileBlocks(args.rows)),
                dim3(kExpandThreads), 0, stream, args, PlainWidth(args.count), PlainPieces(args.cols));
}

}  // namespace low_rank

using namespace low_rank;

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

}  // namespace celer::cuda
