#include "kernels/gate_up/gate_up.h"

#include "kernels/matmul/matmul.h"

namespace celer {

void GateUp(const GateUpArgs& args) {
  const int64_t stride = args.gate.rows;
  const MatmulOutput outputs[] = {{.w = args.gate, .out = args.out, .out_stride = stride},
                                  {.w = args.up, .out = args.up_out, .out_stride = stride}};
  const auto activate = [&](const MatmulTile& tile) {
    const int64_t rows = tile.row_end - tile.row_begin;
    for (int64_t t = tile.token_begin; t < tile.token_end; ++t) {
      // Other cores may have read these lines last: asking for them takes long.
      constexpr int64_t kAhead = 8, kLine = 16;
      float* const out = args.out + t * stride + tile.row_begin;
      if (t + kAhead < tile.token_end)
        for (int64_t r = 0; r < rows; r += kLine) __builtin_prefetch(out + kAhead * stride + r, 1);
      const int64_t i = t - tile.token_begin;
      ActivateMul(args.activation, tile.sums[0] + i * tile.strides[0], tile.sums[1] + i * tile.strides[1],
                  out, rows);
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
