// Activations as the products of wgmma_cuda.h read them.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif

namespace celer::cuda {

// Tokens come in tiles of `tile` (the last one may be partly empty), columns padded as those of the matrix.
// Within a tile: [padded / 8, tile, 8] bf16, where of each 32 columns the j-th eight (j of 4) has columns
// 8 t + 2 j and 8 t + 2 j + 1 for t = 0 .. 3.
struct WgmmaActivations {
  void* data = nullptr;
  int tile = 0;
  int padded = 0;
  // 2: split precision, a token takes two neighbouring columns, its bf16 rounding and the residual.
  int parts = 1;
  bool steady = false;  // made by one kernel, however many tokens there are, so that their sums are the same

  static constexpr int64_t Bytes(int64_t tokens, int64_t tile, int64_t padded) {
    return (tokens + tile - 1) / tile * tile * padded * 2;
  }

#ifdef __CUDACC__
  // One value; for results that come one by one.
  __device__ __forceinline__ void Store(int token, int column, float value) const {
    __nv_bfloat16* to = At(token, column);
    const __nv_bfloat16 part = __float2bfloat16(value);
    to[0] = part;
    if (parts == 2) to[8] = __float2bfloat16(value - __bfloat162float(part));
  }
  // Columns `column`, which is even, and the next one.
  __device__ __forceinline__ void StoreTwo(int token, int column, float2 values) const {
    auto* to = reinterpret_cast<__nv_bfloat162*>(At(token, column));
    const __nv_bfloat162 part = __float22bfloat162_rn(values);
    to[0] = part;
    if (parts == 2) {
      const float2 kept = __bfloat1622float2(part);
      to[4] = __floats2bfloat162_rn(values.x - kept.x, values.y - kept.y);
    }
  }

 private:
  __device__ __forceinline__ __nv_bfloat16* At(int token, int column) const {
    const int at = token * parts;
    return static_cast<__nv_bfloat16*>(data) +
           ((static_cast<int64_t>(at / tile) * (padded / 8) + column / 32 * 4 + column % 8 / 2) * tile +
            at % tile) *
               8 +
           column % 32 / 8 * 2 + column % 2;
  }
#endif
};

}  // namespace celer::cuda
