// out[t, r] = x[t, :] . w[r, :] (+ bias[r]) (+ residual[t, r]): every projection of the decoder.
//
// A row of `out` depends on its own row of `x` alone, bit for bit: any chunking of a prompt and any company
// in a batch gives the same result.
#pragma once

#include <cstdint>
#include <span>

#include "core/thread_pool.h"
#include "core/variant.h"
#include "kernels/weight_view.h"

namespace celer {

struct MatmulArgs {
  const float* x = nullptr;  // [tokens, w.cols]
  int64_t tokens = 0;
  WeightView w;
  const float* bias = nullptr;      // [w.rows], or none
  const float* residual = nullptr;  // [tokens, w.rows], or none; may be out
  float* out = nullptr;             // [tokens, out_stride]
  int64_t out_stride = 0;           // >= w.rows
  ThreadPool* pool = nullptr;
};

using MatmulFn = void (*)(const MatmulArgs&);

void Matmul(const MatmulArgs& args);
std::span<const Variant<MatmulFn>> MatmulVariants();

// The end of every variant: bias and residual added to a tile [tokens, stride] of sums, for rows from `row`
// and tokens from `token` on.
inline void StoreTile(const MatmulArgs& args, int64_t row, int64_t rows, int64_t token, int64_t tokens,
                      const float* tile, int64_t stride) {
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t at = (token + t) * args.out_stride + row;
    for (int64_t r = 0; r < rows; ++r)
      args.out[at + r] = tile[t * stride + r] + (args.bias ? args.bias[row + r] : 0.0f) +
                         (args.residual ? args.residual[at + r] : 0.0f);
  }
}

namespace reference {
void Matmul(const MatmulArgs& args);
}
namespace portable {
void Matmul(const MatmulArgs& args);
}
namespace arm {
void MatmulDotprod(const MatmulArgs& args);
}
namespace x86 {
void MatmulAvx2(const MatmulArgs& args);
}

}  // namespace celer
