#include "kernels/matmul/activation_q8.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace celer {

void QuantizeActivations(const float* x, int64_t tokens, int64_t cols, Q8Block4* out) {
  for (int64_t b = 0; b < cols / kQ8Block; ++b) {
    Q8Block4& block = out[b];
    std::memset(&block, 0, sizeof block);
    for (int64_t t = 0; t < tokens; ++t) {
      const float* v = x + t * cols + b * kQ8Block;
      float largest = 0;
      for (int i = 0; i < kQ8Block; ++i) largest = std::max(largest, std::abs(v[i]));
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      int32_t sum = 0;
      for (int i = 0; i < kQ8Block; ++i) {
        // Adding and taking away 1.5 * 2^23 rounds to nearest even without a call, so that this loop
        // vectorizes.
        const float rounded = (v[i] * inverse + 12582912.0f) - 12582912.0f;
        block.q[t][i] = static_cast<int8_t>(rounded);
        sum += static_cast<int32_t>(rounded);
      }
      block.scale[t] = largest / 127.0f;
      block.sum[t] = block.scale[t] * static_cast<float>(sum);
    }
  }
}

}  // namespace celer
