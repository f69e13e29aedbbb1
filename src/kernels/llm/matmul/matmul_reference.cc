// The reference of every other variant: dequantize a row, multiply, accumulate in double.
#include <cmath>
#include <vector>

#include "kernels/llm/matmul/matmul.h"

namespace celer {
namespace {

void NormRow(const MatmulArgs& args, const float* x, double* out) {
  const int64_t cols = args.outputs[0].w.cols;
  double mean = 0, squares = 0;
  if (args.layer_norm)
    for (int64_t c = 0; c < cols; ++c) mean += x[c] / static_cast<double>(cols);
  for (int64_t c = 0; c < cols; ++c) squares += (x[c] - mean) * (x[c] - mean);
  const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + args.eps);
  for (int64_t c = 0; c < cols; ++c)
    out[c] = args.norm ? (x[c] - mean) * scale * args.norm[c] + (args.norm_bias ? args.norm_bias[c] : 0.0)
                       : double{x[c]};
}

void Run(const MatmulArgs& args) {
  const int64_t cols = args.outputs[0].w.cols;
  const auto row_of = [&](int64_t t) { return args.x + (args.x_rows ? args.x_rows[t] : t) * cols; };
  std::vector<double> x(args.tokens * cols);
  for (int64_t t = 0; t < args.tokens; ++t) {
    NormRow(args, row_of(t), &x[t * cols]);
  }
  for (const MatmulOutput& to : args.outputs)
    args.pool->ParallelFor(to.w.rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> row(cols);
      for (int64_t r = begin; r < end; ++r) {
        DecodeWeightRow(to.w, r, row.data());
        for (int64_t t = 0; t < args.tokens; ++t) {
          double sum = to.bias ? to.bias[r] : 0.0;
          for (int64_t c = 0; c < cols; ++c) sum += x[t * cols + c] * double{row[c]};
          if (to.residual) sum += to.residual[t * to.out_stride + r];
          to.out[t * to.out_stride + r] = static_cast<float>(sum);
        }
      }
    });
  if (args.finish) (*args.finish)(StoredTile(args.outputs, 0, args.tokens, 0, args.outputs[0].w.rows));
}

}  // namespace

const MatmulKernels kMatmulReference{.name = "reference", .run = Run};

}  // namespace celer
