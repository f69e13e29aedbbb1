// Terms of any kind. Those of the tensor cores are in low_rank_plain_cuda.cu.
#include "kernels/llm/low_rank/low_rank_device.cuh"
#include "kernels/shared/cuda/element.cuh"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda {
namespace low_rank {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kStep = 4;
constexpr int kSums = kStep * kTile + kTile;  // of a block: products, and squares of the rows of x
constexpr int kChunk = 32;                    // ranks of A x that a block of the expansion has at once

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
      const DeviceTerm& term = TermOf(a.plan, tile, use, a.matrices[which]);
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
      const DeviceTerm& term = TermOf(a.plan, tile, use, m);
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
          const float b = At(term.b, term.b_type, static_cast<int64_t>(begin + r) * term.b_stride + row);
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
    const float* const biases = BiasOf(tile, m);
    const float bias = biases ? biases[row] : 0;
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
      const DeviceTerm& term = TermOf(a.plan, tile, use, m);
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
                   At(term.b, term.b_type, static_cast<int64_t>(r) * term.b_stride + col), change);
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
// As the other kernels have them: without what says that some tiles are not theirs, if all are.
LowRankArgs OfOthers(LowRankArgs args) {
  if (!RunsPlain(args)) args.plain_low = nullptr;
  return args;
}

}  // namespace
}  // namespace low_rank

using namespace low_rank;

cudaError_t LaunchLowRankShrink(const LowRankArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.count == 0) return cudaSuccess;
  const bool plain = RunsPlain(args);
  if (plain && args.most_plain_rank > 0)
    if (const cudaError_t code = LaunchPlainShrink(args, stream); code != cudaSuccess) return code;
  if ((plain && !args.others) || args.most_rank == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.count * ((args.most_rank + kStep - 1) / kStep)),
                  TileBlocks(args.rows));
  return LaunchWhenDone(InFours(args) ? ShrinkKernel<4> : ShrinkKernel<1>, grid, dim3(kThreads), stream,
                        OfOthers(args));
}

cudaError_t LaunchLowRankExpand(const LowRankArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.count == 0) return cudaSuccess;
  const bool plain = RunsPlain(args);
  if (plain)
    if (const cudaError_t code = LaunchPlainExpand(args, stream); code != cudaSuccess) return code;
  if (plain && !args.others) return cudaSuccess;
  return LaunchWhenDone(ExpandKernel, dim3(RowBlocks(args, kThreads), TileBlocks(args.rows)), dim3(kThreads),
                        stream, OfOthers(args));
}

cudaError_t LaunchLowRankWhole(const LowRankArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.count == 0) return cudaSuccess;
  return LaunchWhenDone(InFours(args) ? WholeKernel<4> : WholeKernel<1>,
                        dim3(RowBlocks(args, kStep), TileBlocks(args.rows)), dim3(kThreads), stream, args);
}

cudaError_t LaunchLowRankEmbed(const LowRankEmbedArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((args.table.cols + kThreads - 1) / kThreads);
  return LaunchWhenDone(EmbedTermsKernel, dim3(blocks, TileBlocks(args.rows)), dim3(kThreads), stream, args);
}

}  // namespace celer::cuda
