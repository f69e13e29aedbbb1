#include "kernels/gate_up/gate_up.h"

#include "kernels/matmul/matmul.h"

namespace celer {

void GateUp(const GateUpArgs& args) {
  const int64_t stride = args.gate.rows;
  const MatmulOutput outputs[] = {{.w = args.gate, .out = args.out, .out_stride = stride},
                                  {.w = args.up, .out = args.up_out, .out_stride = stride}};
  const auto activate = [&](int64_t token_begin, int64_t token_end, int64_t row_begin, int64_t row_end) {
    for (int64_t t = token_begin; t < token_end; ++t) {
      float* gate = args.out + t * stride + row_begin;
      ActivateMul(args.activation, gate, args.up_out + t * stride + row_begin, gate, row_end - row_begin);
    }
  };
  const MatmulArgs::Finish finish = activate;
  Matmul({.x = args.x,
          .tokens = args.tokens,
          .norm = args.norm,
          .eps = args.eps,
          .outputs = outputs,
          .finish = &finish,
          .pool = args.pool});
}

}  // namespace celer
