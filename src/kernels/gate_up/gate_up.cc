#include "kernels/gate_up/gate_up.h"

#include <cmath>

#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"

namespace celer {
namespace {

float Activate(Activation kind, float x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1.0f + std::exp(-x));
    case Activation::kGelu:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678f));
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::kRelu:
      return x > 0 ? x : 0;
  }
  return x;
}

}  // namespace

void GateUp(const GateUpArgs& args) {
  const float* x = args.x;
  if (args.norm) {
    RmsNorm({.x = x,
             .weight = args.norm,
             .eps = args.eps,
             .rows = args.tokens,
             .cols = args.gate.cols,
             .out = args.normed});
    x = args.normed;
  }
  const auto project = [&](const WeightView& w, float* out) {
    Matmul({.x = x, .tokens = args.tokens, .w = w, .out = out, .out_stride = w.rows, .pool = args.pool});
  };
  project(args.gate, args.out);
  project(args.up, args.up_out);
  args.pool->ParallelFor(args.tokens * args.gate.rows, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      args.out[i] = Activate(args.activation, args.out[i]) * args.up_out[i];
  });
}

}  // namespace celer
