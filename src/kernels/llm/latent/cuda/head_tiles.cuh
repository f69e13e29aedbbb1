// Products of a matrix of each head with the input of that head, for up to eight tokens at a time. Weights are in registers
// before the kernel in front has ended.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/shared/cuda/device_matrix.h"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda::latent {

constexpr int kHeadWarps = 4, kHeadThreads = kHeadWarps * 32;
constexpr int kHeadTokens = 8;  // at once

// A lane has 16 bytes of each 64 of a row (device_matrix.h).
template <class T>
constexpr int kLaneColumns = 16 / sizeof(T);
template <class T>
constexpr int kUnitColumns = 64 / sizeof(T);

template <class T>
__device__ __forceinline__ void Widen(const uint4& raw, float (&out)[kLaneColumns<T>]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      out[i] = __uint_as_float(words[i]);
    } else {
      float2 two;
      if constexpr (sizeof(T) == 2 && std::is_same_v<T, __half>)
        two = __half22float2(reinterpret_cast<const __half2&>(words[i]));
      else
        two = make_float2(__uint_as_float(words[i] << 16), __uint_as_float(words[i] & 0xffff0000u));
      out[2 * i] = two.x, out[2 * i + 1] = two.y;
    }
  }
}

// The matrices of all heads below each other, `rows` of each.
struct HeadMatrices {
  DeviceMatrix w;
  int rows = 0;
};

// Where the products take their input, for rows of one head: shared memory, [tokens, pitch], zero beyond the columns.
struct SharedInput {
  const float* x;
  int pitch;
};
// For rows of any heads.
struct GlobalInput {
  const float* x;
  int64_t token, head;  // floats from one to the next
};

template <class T, int kUnits, int kTiles>
struct HeadTiles {
  static constexpr int kRows = kHeadWarps * kTiles * 8;  // of a thread block
  uint4 raw[kTiles][kUnits];
  float sums[kTiles][kHeadTokens];

  static __device__ __forceinline__ int FirstTile(int block, int warp) {
    return (block * kHeadWarps + warp) * kTiles;
  }

  __device__ __forceinline__ void Load(const DeviceMatrix& m, int tile, int unit, int lane) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const bool exists = (tile + j) * 8 < m.rows && (unit + i) * kUnitColumns<T> < m.cols;
        const std::byte* from = m.data + (tile + j) * int64_t{8} * m.row_bytes + (unit + i) * 512 + lane * 16;
        raw[j][i] = exists ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
      }
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int token = 0; token < kHeadTokens; ++token) sums[j][token] = 0;
  }

  __device__ __forceinline__ void Multiply(const SharedInput& in, int unit, int tokens, int lane) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int column = (unit + i) * kUnitColumns<T> + lane % 4 * kLaneColumns<T>;
      if (column >= in.pitch) break;
      float w[kTiles][kLaneColumns<T>];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) Widen<T>(raw[j][i], w[j]);
#pragma unroll
      for (int token = 0; token < kHeadTokens; ++token) {
        if (token >= tokens) break;
#pragma unroll
        for (int e = 0; e < kLaneColumns<T>; e += 4) {
          const float4 x = *reinterpret_cast<const float4*>(in.x + token * in.pitch + column + e);
#pragma unroll
          for (int j = 0; j < kTiles; ++j)
            sums[j][token] += w[j][e] * x.x + w[j][e + 1] * x.y + w[j][e + 2] * x.z + w[j][e + 3] * x.w;
        }
      }
    }
  }

  __device__ __forceinline__ void Multiply(const GlobalInput& in, const HeadMatrices& m, int tile, int unit,
                                           int tokens, int lane) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int row = min((tile + j) * 8 + lane / 4, m.w.rows - 1);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const int column = (unit + i) * kUnitColumns<T> + lane % 4 * kLaneColumns<T>;
        float w[kLaneColumns<T>];
        Widen<T>(raw[j][i], w);
#pragma unroll
        for (int token = 0; token < kHeadTokens; ++token) {
          if (token >= tokens) break;
          const float* x = in.x + token * in.token + row / m.rows * in.head + column;
#pragma unroll
          for (int e = 0; e < kLaneColumns<T>; ++e)
            if (column + e < m.w.cols) sums[j][token] += w[e] * __ldcg(x + e);
        }
      }
    }
  }

  // store(token, row, value)
  template <class Store>
  __device__ __forceinline__ void Finish(int rows, int tile, int tokens, int lane, const Store& store) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int token = 0; token < kHeadTokens; ++token) {
        if (token >= tokens) break;
        float sum = sums[j][token];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const int row = (tile + j) * 8 + lane / 4;
        if (lane % 4 == token % 4 && row < rows) store(token, row, sum);
      }
  }
};

// By a whole thread block: block `block` of the matrices' rows. `fill` brings the input into shared memory.
template <class T, int kUnits, int kTiles, bool kWhole, class Fill, class Store>
__device__ __forceinline__ void MultiplyHeads(const HeadMatrices& m, int block, int tokens,
                                              const SharedInput& shared, const GlobalInput& global,
                                              const Fill& fill, const Store& store) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadTiles<T, kUnits, kTiles> tiles;
  const int tile = tiles.FirstTile(block, warp);
  tiles.Load(m.w, tile, 0, lane);
  WaitForPrevious();
  fill();
  tiles.Clear();
  for (int unit = 0; unit * kUnitColumns<T> < m.w.cols; unit += kUnits) {
    if (unit > 0) tiles.Load(m.w, tile, unit, lane);
    if constexpr (kWhole)
      tiles.Multiply(shared, unit, tokens, lane);
    else
      tiles.Multiply(global, m, tile, unit, tokens, lane);
  }
  tiles.Finish(m.w.rows, tile, tokens, lane, store);
}

// Columns of the input in shared memory.
template <class T>
__host__ __device__ constexpr int HeadPitch(int cols) {
  return (cols + kUnitColumns<T> - 1) / kUnitColumns<T> * kUnitColumns<T>;
}

constexpr int kMostShared = 40 * 1024;  // beside what is static

// Calls run.operator()<type, units, tiles, whole>(pitch) for the best kernel; how many rows a thread block has follows
// from the template.
template <class T, class Run>
cudaError_t WithHeadType(const HeadMatrices& m, const Run& run) {
  const int pitch = HeadPitch<T>(m.w.cols), units = pitch / kUnitColumns<T>;
  const auto whole = [&](int rows) {
    return m.rows % rows == 0 && m.w.cols % 4 == 0 && kHeadTokens * pitch * 4 <= kMostShared;
  };
  if (units <= 4 && whole(HeadTiles<T, 4, 2>::kRows)) return run.template operator()<T, 4, 2, true>(pitch);
  if (units <= 8 && whole(HeadTiles<T, 8, 1>::kRows)) return run.template operator()<T, 8, 1, true>(pitch);
  if (whole(HeadTiles<T, 16, 1>::kRows)) return run.template operator()<T, 16, 1, true>(pitch);
  return run.template operator()<T, 8, 1, false>(pitch);
}

template <class Run>
cudaError_t WithHeads(const HeadMatrices& m, const Run& run) {
  switch (m.w.format) {
    case Format::kF32:
      return WithHeadType<float>(m, run);
    case Format::kF16:
      return WithHeadType<__half>(m, run);
    case Format::kBf16:
      return WithHeadType<__nv_bfloat16>(m, run);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace celer::cuda::latent
