// Activations for the products of wgmma_cuda.h, with a fused norm.
#include <algorithm>

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_ptx.cuh"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_cuda.h"
#include "kernels/shared/cuda/launch.cuh"
#include "kernels/shared/cuda/not_finite.cuh"
#include "kernels/shared/cuda/transposed.cuh"

namespace celer::cuda {
namespace wgmma {
namespace {

using matvec::BarrierInit;
using matvec::BarrierWait;
using matvec::PackBf16;

constexpr int kActivationThreads = 256;

// Grid: tokens. A thread makes the eight columns that lie together in the output.
__global__ void __launch_bounds__(kActivationThreads)
    ActivationsKernel(const float* x, const int32_t* rows, int cols, const float* norm, float eps,
                      const __grid_constant__ WgmmaActivations out) {
  LetNextStart();
  WaitForPrevious();
  const int token = static_cast<int>(blockIdx.x);
  const float* row = x + static_cast<int64_t>(rows ? __ldcg(rows + token) : token) * cols;
  const bool whole = cols % 2 == 0;
  const auto load = [&](const float* from, int col) {
    if (whole && col < cols) return __ldcg(reinterpret_cast<const float2*>(from + col));
    return make_float2(col < cols ? from[col] : 0, col + 1 < cols ? from[col + 1] : 0);
  };
  const int eights = out.padded / 8;
  constexpr int kKept = 4;  // eights that stay in registers between the passes
  float2 kept[kKept][4];
  float scale = 1;
  const auto first_col = [](int eight) { return eight / 4 * 32 + eight % 4 * 2; };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int eight = static_cast<int>(threadIdx.x) + i * kActivationThreads;
    if (eight >= eights) break;
#pragma unroll
    for (int t = 0; t < 4; ++t) kept[i][t] = load(row, first_col(eight) + t * 8);
  }
  if (norm) {
    __shared__ float sums[kActivationThreads / 32];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (static_cast<int>(threadIdx.x) + i * kActivationThreads >= eights) break;
#pragma unroll
      for (int t = 0; t < 4; ++t) squares += kept[i][t].x * kept[i][t].x + kept[i][t].y * kept[i][t].y;
    }
    for (int eight = static_cast<int>(threadIdx.x) + kKept * kActivationThreads; eight < eights;
         eight += kActivationThreads)
      for (int t = 0; t < 4; ++t) {
        const float2 v = load(row, first_col(eight) + t * 8);
        squares += v.x * v.x + v.y * v.y;
      }
    for (int j = 16; j > 0; j /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, j);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    float total = 0;
    for (int i = 0; i < kActivationThreads / 32; ++i) total += sums[i];
    scale = 1.0f / sqrtf(total / static_cast<float>(cols) + eps) + ZeroOrNan(total);
  }
  const int column = token * out.parts;
  uint4* to = reinterpret_cast<uint4*>(out.data) +
              static_cast<int64_t>(column / out.tile) * eights * out.tile + column % out.tile;
  const auto store = [&](int eight, const float2(&v)[4]) {
    uint32_t pairs[4], rest[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      float2 w = make_float2(1, 1);
      if (norm) w = load(norm, first_col(eight) + t * 8);
      const float2 value = make_float2(v[t].x * scale * w.x, v[t].y * scale * w.y);
      pairs[t] = PackBf16(value.x, value.y);
      const float2 kept_part = matvec::UnpackBf16(pairs[t]);
      rest[t] = PackBf16(value.x - kept_part.x, value.y - kept_part.y);
    }
    uint4* at = to + static_cast<int64_t>(eight) * out.tile;
    at[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    if (out.parts == 2) at[1] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int eight = static_cast<int>(threadIdx.x) + i * kActivationThreads;
    if (eight >= eights) break;
    store(eight, kept[i]);
  }
  for (int eight = static_cast<int>(threadIdx.x) + kKept * kActivationThreads; eight < eights;
       eight += kActivationThreads) {
    float2 v[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) v[t] = load(row, first_col(eight) + t * 8);
    store(eight, v);
  }
}

// As above for many tokens and up to kSteps * 1024 columns, in code of 9.0 alone. Grid: runs of fours of tokens, `fours` each.
// Copies bring them into shared memory, `buffers` fours ahead. A lane takes two neighbouring columns of four
// tokens; four lanes then exchange what they have, so that each has eight columns of one token, and 64 bytes
// lie together in the output.
constexpr int kManyThreads = 512;
constexpr int kFour = 4;
constexpr int kManyShared = 224 * 1024;
constexpr int kManyBuffers = 8;

template <int kSteps>
__global__ void __launch_bounds__(kManyThreads)
    ManyActivationsKernel(const float* x, int tokens, int cols, const float* norm, float eps,
                          const __grid_constant__ WgmmaActivations out, int fours, int buffers) {
#if CELER_HOPPER
  constexpr int kWarps = kManyThreads / 32;
  extern __shared__ __align__(128) char memory[];
  __shared__ float sums[2][kFour][kWarps];
  __shared__ uint64_t barriers[kManyBuffers];
  LetNextStart();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, j = lane % 4, t = lane / 4 % 4;
  const int first_column = warp * 64 + lane * 2;
  const uint32_t shared = matvec::SharedAddress(memory), full = matvec::SharedAddress(barriers);
  const uint32_t row_bytes = static_cast<uint32_t>(cols) * 4, four_bytes = kFour * row_bytes;
  if (threadIdx.x == 0) {
    for (int i = 0; i < buffers; ++i) BarrierInit(full + i * 8, 1);
    matvec::FenceBarrierInit();
  }
  float2 by[kSteps];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int column = first_column + k * kManyThreads * 2;
    by[k] = norm && column < cols ? __ldg(reinterpret_cast<const float2*>(norm + column)) : make_float2(1, 1);
  }
  __syncthreads();
  WaitForPrevious();
  const int first_token = static_cast<int>(blockIdx.x) * fours * kFour;
  const int own = min(fours, (tokens - first_token + kFour - 1) / kFour);
  const auto bring = [&](int four) {
    const int token = first_token + four * kFour, buffer = four % buffers;
    const uint32_t bytes = static_cast<uint32_t>(min(kFour, tokens - token)) * row_bytes;
    matvec::BarrierExpect(full + buffer * 8, bytes);
    matvec::BulkCopyKeep(shared + buffer * four_bytes, x + static_cast<int64_t>(token) * cols, bytes,
                         full + buffer * 8);
  };
  if (threadIdx.x == 0)
    for (int four = 0; four < min(own, buffers); ++four) bring(four);
  for (int four = 0; four < own; ++four) {
    const int token = first_token + four * kFour, buffer = four % buffers;
    BarrierWait(full + buffer * 8, four / buffers % 2);
    float2 v[kSteps][kFour];
    float squares[kFour] = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int column = first_column + k * kManyThreads * 2;
#pragma unroll
      for (int i = 0; i < kFour; ++i) {
        v[k][i] = make_float2(0, 0);
        if (column < cols && token + i < tokens)
          v[k][i] =
              *reinterpret_cast<const float2*>(memory + buffer * four_bytes + i * row_bytes + column * 4);
        squares[i] += v[k][i].x * v[k][i].x + v[k][i].y * v[k][i].y;
      }
    }
    float scale[kFour] = {1, 1, 1, 1};
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      for (int lanes = 16; lanes > 0; lanes /= 2)
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], lanes);
      if (lane == 0) sums[four % 2][i][warp] = squares[i];
    }
    __syncthreads();
    // All threads have read the buffer.
    if (threadIdx.x == 0 && four + buffers < own) bring(four + buffers);
    if (norm) {
#pragma unroll
      for (int i = 0; i < kFour; ++i) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) total += sums[four % 2][i][w];
        scale[i] = 1.0f / sqrtf(total / static_cast<float>(cols) + eps) + ZeroOrNan(total);
      }
    }
    const int to_token = token + t;
    uint4* to = reinterpret_cast<uint4*>(out.data) +
                static_cast<int64_t>(to_token / out.tile) * (out.padded / 8) * out.tile + to_token % out.tile;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int column = first_column + k * kManyThreads * 2;
      uint32_t pairs[kFour];
#pragma unroll
      for (int i = 0; i < kFour; ++i)
        pairs[i] = PackBf16(v[k][i].x * scale[i] * by[k].x, v[k][i].y * scale[i] * by[k].y);
      const uint4 eight = Transposed<4>(pairs, t);
      if (column < out.padded && to_token < tokens)
        to[static_cast<int64_t>(column / 32 * 4 + j) * out.tile] = eight;
    }
  }
#endif
}

template <int kSteps>
cudaError_t LaunchMany(const float* x, int64_t tokens, int cols, const float* norm, float eps,
                       const WgmmaActivations& out, int buffers, cudaStream_t stream) {
  const int all = static_cast<int>((tokens + kFour - 1) / kFour);
  const int fours = (all + Multiprocessors() - 1) / Multiprocessors();
  buffers = std::min(buffers, fours);
  return LaunchLarge<ManyActivationsKernel<kSteps>, kManyShared>(
      dim3(static_cast<unsigned>((all + fours - 1) / fours)), dim3(kManyThreads), buffers * kFour * 4 * cols,
      stream, x, static_cast<int>(tokens), cols, norm, eps, out, fours, buffers);
}

}  // namespace
}  // namespace wgmma

cudaError_t LaunchWgmmaActivations(const float* x, const int32_t* rows, int64_t tokens, int cols,
                                   const float* norm, float eps, const WgmmaActivations& out,
                                   cudaStream_t stream) {
  using namespace wgmma;
  const int buffers = std::min(kManyBuffers, kManyShared / (kFour * 4 * cols));
  const bool many = HopperCode() && !rows && tokens > kWgmmaJoined && cols % 4 == 0 && out.parts == 1 &&
                    buffers > 0 && !out.steady;
  if (many && out.padded <= 4096) return LaunchMany<4>(x, tokens, cols, norm, eps, out, buffers, stream);
  if (many && out.padded <= 8192) return LaunchMany<8>(x, tokens, cols, norm, eps, out, buffers, stream);
  return Launch(ActivationsKernel, dim3(static_cast<unsigned>(tokens)), dim3(kActivationThreads), 0, stream,
                x, rows, cols, norm, eps, out);
}

}  // namespace celer::cuda
