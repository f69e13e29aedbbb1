#include "kernels/llm/gate_up/gate_up.h"

#include <algorithm>

#include "kernels/llm/matmul/matmul.h"

namespace celer {
namespace {

// Rows [row, row + rows) of one token.
void ActivateWithBias(const GateUpArgs& args, const float* gate, const float* up, int64_t row, int64_t rows,
                      float* out) {
  constexpr int64_t kAtOnce = 64;
  float biased_gate[kAtOnce], biased_up[kAtOnce];
  for (int64_t begin = 0; begin < rows; begin += kAtOnce) {
    const int64_t n = std::min(kAtOnce, rows - begin);
    for (int64_t r = 0; r < n; ++r) {
      biased_gate[r] = gate[begin + r] + args.gate_bias[row + begin + r];
      biased_up[r] = up[begin + r] + args.up_bias[row + begin + r];
    }
    ActivateMul(args.activation, biased_gate, biased_up, out + begin, n, args.swiglu_limit);
  }
}

}  // namespace

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
      const float *gate = tile.sums[0] + i * tile.strides[0], *up = tile.sums[1] + i * tile.strides[1];
      if (args.gate_bias)
        ActivateWithBias(args, gate, up, tile.row_begin, rows, out);
      else
        ActivateMul(args.activation, gate, up, out, rows, args.swiglu_limit);
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
