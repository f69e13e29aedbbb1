#include "kernels/llm/logits/logits.h"

#include "kernels/llm/matmul/matmul.h"

namespace celer {

void Logits(const LogitsArgs& args) {
  Matmul({.x = args.x,
          .x_rows = args.rows.data(),
          .tokens = static_cast<int64_t>(args.rows.size()),
          .norm = args.norm,
          .eps = args.eps,
          .pool = args.pool},
         {.w = args.head, .out = args.out, .out_stride = args.head.rows});
}

}  // namespace celer
