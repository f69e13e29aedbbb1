// The epilogue of the flash kernels: a query's result as f32, or as the activations of the next product.
#pragma once

#include <cuda_bf16.h>

#include "kernels/llm/attention/cuda/attention_cuda.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/shared/cuda/transposed.cuh"

namespace celer::cuda::attention {

// By whole warps. A lane has dimensions t * 2 and t * 2 + 1 of every eight: value(n), n < D / 8, where those
// from `dim` on do not count; `exists` is the same for the four lanes t of a query.
template <int D, class Value>
__device__ __forceinline__ void StoreResult(const DeviceAttentionArgs& a, int token, int head, int dim, int t,
                                            bool exists, const Value& value) {
  const int64_t column = static_cast<int64_t>(head) * dim;
  if (!a.wgmma.data && !a.rows) {
    float* out = a.out + static_cast<int64_t>(token) * a.heads * dim + column + t * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      if (exists && n * 8 + t * 2 < dim) *reinterpret_cast<float2*>(out + n * 8) = value(n);
    return;
  }
#pragma unroll
  for (int n = 0; n < D / 8; n += 4) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 v = value(n + i);
      pairs[i] = matvec::PackBf16(v.x, v.y);
    }
    if (a.wgmma.data) {  // in the very order of the lanes
      const int64_t tile = token / a.wgmma.tile, eight = column / 8 + n + t;
      if (exists && n * 8 < dim)
        reinterpret_cast<uint4*>(
            a.wgmma.data)[(tile * (a.wgmma.padded / 8) + eight) * a.wgmma.tile + token % a.wgmma.tile] =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    } else {
      const uint4 eight = Transposed<1>(pairs, t);
      if (exists && n * 8 < dim)
        reinterpret_cast<uint4*>(a.rows)[(static_cast<int64_t>(token) * a.rows_width + column) / 8 + n + t] =
            eight;
    }
  }
}

}  // namespace celer::cuda::attention
