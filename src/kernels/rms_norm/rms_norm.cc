#include "kernels/rms_norm/rms_norm.h"

#include <cmath>

#include "kernels/vec.h"

namespace celer {

void RmsNorm(const RmsNormArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* x = args.x + r * args.cols;
    float* out = args.out + r * args.cols;
    const float mean = vec::Dot(x, x, args.cols) / static_cast<float>(args.cols);
    const float scale = 1.0f / std::sqrt(mean + args.eps);
    for (int64_t c = 0; c < args.cols; ++c) out[c] = x[c] * scale * args.weight[c];
  }
}

}  // namespace celer
