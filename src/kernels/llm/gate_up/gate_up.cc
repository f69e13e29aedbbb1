#include "kernels/llm/gate_up/gate_up.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "kernels/llm/low_rank/adapted.h"

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

// The same without a gate.
void ActivatePlain(const GateUpArgs& args, const float* up, int64_t row, int64_t rows, float* out) {
  constexpr int64_t kAtOnce = 64;
  static constexpr auto kOnes = [] {
    std::array<float, kAtOnce> ones{};
    for (float& one : ones) one = 1;
    return ones;
  }();
  float biased[kAtOnce];
  for (int64_t begin = 0; begin < rows; begin += kAtOnce) {
    const int64_t n = std::min(kAtOnce, rows - begin);
    for (int64_t r = 0; r < n; ++r)
      biased[r] = up[begin + r] + (args.up_bias ? args.up_bias[row + begin + r] : 0.0f);
    ActivateMul(args.activation, biased, kOnes.data(), out + begin, n);
  }
}

void CutGate(float deviations, float* gate, int64_t n) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += gate[i];
  const double mean = sum / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) squares += (gate[i] - mean) * (gate[i] - mean);
  const auto bound = static_cast<float>(mean + deviations * std::sqrt(squares / static_cast<double>(n)));
  // A NaN is in the bound, and stays.
  for (int64_t i = 0; i < n; ++i) gate[i] = gate[i] < bound ? 0.0f : gate[i] - bound;
}

// A bound needs the whole gate, so it is not fused with the product.
void SparseGateUp(const GateUpArgs& args, std::span<const MatmulOutput> outputs, const LowRankBatch& added) {
  const int64_t stride = outputs[0].out_stride;
  Matmul({.x = args.x,
          .tokens = args.tokens,
          .norm = args.norm,
          .layer_norm = args.layer_norm,
          .norm_bias = args.norm_bias,
          .eps = args.eps,
          .outputs = outputs,
          .pool = args.pool},
         added);
  args.pool->ParallelFor(args.tokens, /*grain=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* const gate = args.out + t * stride;
      CutGate(*args.cut, gate, args.up.rows);
      ActivateMul(args.activation, gate, args.up_out + t * stride, gate, args.up.rows);
    }
  });
}

}  // namespace

void GateUp(const GateUpArgs& args) {
  GateUp(args, {});
}

void GateUp(const GateUpArgs& args, const LowRankBatch& added) {
  const int64_t stride = args.out_stride > 0 ? args.out_stride : args.up.rows;
  const bool gated = static_cast<bool>(args.gate);
  const MatmulOutput both[] = {{.w = args.gate, .out = args.out, .out_stride = stride},
                               {.w = args.up, .out = args.up_out, .out_stride = stride}};
  const MatmulOutput plain[] = {{.w = args.up, .out = args.out, .out_stride = stride}};
  const auto outputs = gated ? std::span<const MatmulOutput>(both) : std::span<const MatmulOutput>(plain);
  if (args.cut) return SparseGateUp(args, outputs, added);
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
      if (!gated)
        ActivatePlain(args, gate, tile.row_begin, rows, out);
      else if (args.gate_bias)
        ActivateWithBias(args, gate, up, tile.row_begin, rows, out);
      else
        ActivateMul(args.activation, gate, up, out, rows, args.swiglu_limit);
    }
  };
  const MatmulArgs::Finish finish = activate;
  Matmul({.x = args.x,
          .tokens = args.tokens,
          .norm = args.norm,
          .layer_norm = args.layer_norm,
          .norm_bias = args.norm_bias,
          .eps = args.eps,
          .outputs = outputs,
          .finish = &finish,
          .pool = args.pool},
         added);
}

}  // namespace celer
