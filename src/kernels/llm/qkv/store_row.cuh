// The append to the paged KV of one row, as StoreKvRow() in kernels/llm/kv_row.h does it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/shared/cuda/device_batch.h"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda {

// A row of one head, by a warp; `part` is kv.k or kv.v.
__device__ __forceinline__ void StoreRow(const DeviceKv& kv, std::byte* part, int64_t block, int head,
                                         int slot, const float* row, int lane) {
  std::byte* to = part + kv.HeadOffset(block, head) + slot * kv.row_bytes();
  if (kv.dtype != DType::kI8) {
    for (int i = lane; i < kv.head_dim; i += 32) {
      if (kv.dtype == DType::kBf16)
        reinterpret_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16(row[i]);
      else if (kv.dtype == DType::kF16)
        reinterpret_cast<__half*>(to)[i] = __float2half_rn(row[i]);
      else
        reinterpret_cast<__nv_fp8_storage_t*>(to)[i] =
            __nv_cvt_float_to_fp8(row[i], __NV_SATFINITE, __NV_E4M3);
    }
    return;
  }
  float top = 0;
  for (int i = lane; i < kv.head_dim; i += 32) top = MaxOrNan(top, fabsf(row[i]));
  for (int apart = 16; apart > 0; apart /= 2) top = MaxOrNan(top, __shfl_xor_sync(0xffffffffu, top, apart));
  // 127 / top may be infinite for a subnormal top: nothing but zeros is left of such a row.
  const float inverse = top > 0 ? 127 / top : 0;
  for (int i = lane; i < kv.head_dim; i += 32)
    reinterpret_cast<int8_t*>(to)[i] =
        isfinite(inverse) ? static_cast<int8_t>(__float2int_rn(row[i] * inverse)) : int8_t{0};
  if (lane == 0)
    reinterpret_cast<float*>(part + kv.HeadOffset(block, head) + kKvBlock * kv.row_bytes())[slot] = top / 127;
}

}  // namespace celer::cuda
