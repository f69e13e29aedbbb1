#include "kernels/logits/logits.h"

#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"

namespace celer {

void Logits(const LogitsArgs& args) {
  const int64_t hidden = args.head.cols;
  const auto rows = static_cast<int64_t>(args.rows.size());
  for (int64_t i = 0; i < rows; ++i)
    RmsNorm({.x = args.x + args.rows[static_cast<size_t>(i)] * hidden,
             .weight = args.norm,
             .eps = args.eps,
             .rows = 1,
             .cols = hidden,
             .out = args.normed + i * hidden});
  Matmul({.x = args.normed,
          .tokens = rows,
          .w = args.head,
          .out = args.out,
          .out_stride = args.head.rows,
          .pool = args.pool});
}

}  // namespace celer
