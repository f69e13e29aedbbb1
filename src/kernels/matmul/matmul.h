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

namespace reference {
void Matmul(const MatmulArgs& args);
}
namespace portable {
void Matmul(const MatmulArgs& args);
}

}  // namespace celer
