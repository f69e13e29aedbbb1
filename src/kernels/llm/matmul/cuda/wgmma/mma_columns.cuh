// What Wgmma() of wgmma_ptx.cuh does for a warp's 16 rows, by mma.sync: the same rows in registers, the same columns in
// shared memory, the same sums.
#pragma once

#include <cstdint>

namespace celer::cuda::gemm {

// Columns are core matrices of 8 tokens x 16 bytes, those of N tokens behind each other, then the next 8 along k. Where a
// lane's row of the four is that ldmatrix reads: k and k + 8 of eight tokens, and of the next eight.
template <int N>
__device__ __forceinline__ uint32_t ColumnsOfLane(int lane) {
  return static_cast<uint32_t>((lane / 8 % 2 * N + lane / 16 * 8 + lane % 8) * 16);
}

__device__ __forceinline__ uint4 LoadMatrices(uint32_t at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

__device__ __forceinline__ void MmaAdd(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d[16, N] += a[part][16, 16] . b[16, N] for all parts; `columns` is where b begins plus ColumnsOfLane().
template <int N, int kParts, int kSteps>
__device__ __forceinline__ void MultiplyColumns(float (&d)[N / 2], const uint32_t (&a)[kParts][kSteps][4],
                                                int step, uint32_t columns) {
#pragma unroll
  for (int j = 0; j < N / 16; ++j) {
    const uint4 b = LoadMatrices(columns + j * 256);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      MmaAdd(d + j * 8, a[part][step], b.x, b.y);
      MmaAdd(d + j * 8 + 4, a[part][step], b.z, b.w);
    }
  }
}

}  // namespace celer::cuda::gemm
