// A transpose across lanes by shuffles.
#pragma once

#include <cstdint>

namespace celer::cuda {

// Four lanes, `kApart` apart, have four words each; lane t of them gets the t-th word of each, in the lanes'
// order.
template <int kApart>
__device__ __forceinline__ uint4 Transposed(const uint32_t (&w)[4], int t) {
  const bool odd = t % 2 != 0, upper = t / 2 != 0;
  const uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[1], kApart),
                 b = __shfl_xor_sync(0xffffffffu, odd ? w[2] : w[3], kApart);
  const uint2 low = odd ? make_uint2(a, w[1]) : make_uint2(w[0], a),
              high = odd ? make_uint2(b, w[3]) : make_uint2(w[2], b);
  const uint32_t c = __shfl_xor_sync(0xffffffffu, upper ? low.x : high.x, 2 * kApart),
                 d = __shfl_xor_sync(0xffffffffu, upper ? low.y : high.y, 2 * kApart);
  return upper ? make_uint4(c, d, high.x, high.y) : make_uint4(low.x, low.y, c, d);
}

}  // namespace celer::cuda
