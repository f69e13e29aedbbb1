// One element of a DeviceMatrix as a float: for what is not worth a kernel of its own per format.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/shared/cuda/device_matrix.h"
#include "kernels/shared/cuda/fp4.cuh"

namespace celer::cuda {

// Byte (int8, fp8) or nibble (int4) at which a column lies within its row; see device_matrix.h.
__device__ __forceinline__ int Int8Offset(int col) {
  return (col & ~63) + (col >> 3 & 3) * 16 + (col >> 5 & 1) * 8 + (col & 7);
}
__device__ __forceinline__ int Fp8Offset(int col) {
  return (Int8Offset(col) & ~3) + (col & 1) * 2 + (col >> 1 & 1);
}
__device__ __forceinline__ int Int4Offset(int col) {
  return (col & ~127) + (col >> 3 & 3) * 32 + (col >> 5 & 3) * 8 + (col & 7);
}
// Index into a grouped scale array.
__device__ __forceinline__ int64_t ScaleIndex(const DeviceMatrix& m, int row, int group) {
  return (static_cast<int64_t>(row / 8) * m.groups_per_row() + group) * 8 + row % 8;
}

// Of a format whose scales are floats.
__device__ __forceinline__ float FloatScale(const DeviceMatrix& m, int row, int col) {
  const float* scales = reinterpret_cast<const float*>(m.scales);
  return m.group > 0 ? scales[ScaleIndex(m, row, col / m.group)] : scales[row];
}

__device__ __forceinline__ float Element(const DeviceMatrix& m, int row, int col) {
  const auto at = [&](int64_t byte) { return m.data + m.Offset(row, byte); };
  switch (m.format) {
    case Format::kF32:
      return *reinterpret_cast<const float*>(at(col * 4));
    case Format::kF16:
      return __half2float(*reinterpret_cast<const __half*>(at(col * 2)));
    case Format::kBf16:
      return __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(at(col * 2)));
    case Format::kInt8:
      return static_cast<float>(*reinterpret_cast<const int8_t*>(at(Int8Offset(col)))) *
             FloatScale(m, row, col);
    case Format::kFp8: {
      const auto code = static_cast<__nv_fp8_storage_t>(*at(Fp8Offset(col)));
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))) * FloatScale(m, row, col);
    }
    case Format::kInt4:
    case Format::kInt4F32: {
      const int nibble = Int4Offset(col);
      const int q = static_cast<int>(*at(nibble / 2)) >> (nibble % 2 * 4) & 15;
      const int64_t index = ScaleIndex(m, row, col / m.group);
      const float2 p = m.format == Format::kInt4
                           ? __half22float2(reinterpret_cast<const __half2*>(m.scales)[index])
                           : reinterpret_cast<const float2*>(m.scales)[index];
      return static_cast<float>(q) * p.x + p.y;
    }
    case Format::kMxfp4: {
      const int nibble = Int4Offset(col);
      const int code = static_cast<int>(*at(nibble / 2)) >> (nibble % 2 * 4) & 15;
      const auto exponent = static_cast<uint32_t>(m.scales[ScaleIndex(m, row, col / m.group)]);
      return fp4::ValueOf(code) * fp4::ScaleOf(exponent);
    }
  }
  return 0;
}

}  // namespace celer::cuda
