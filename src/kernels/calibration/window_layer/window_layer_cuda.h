// The f32 layer of calibration on a GPU: what stands between the products of a decoder layer, over windows of
// text that all begin at position 0. The products are GemmF32's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/llm/rope/rope_layout.h"
#include "kernels/shared/activation/activation_kind.h"

namespace celer::cuda {

// out = x / sqrt(mean(x^2) + eps) * weight, row by row; out may be x.
cudaError_t LaunchWindowsNorm(const float* x, const float* weight, float eps, int64_t rows, int64_t cols,
                              float* out, cudaStream_t stream);

// x [rows, cols] += bias [cols]
cudaError_t LaunchWindowsBias(float* x, const float* bias, int64_t rows, int64_t cols, cudaStream_t stream);

// Queries or keys, in place: an RMS norm over each head if `norm` is given, then the rotation of its
// position.
struct WindowsRotateArgs {
  float* heads = nullptr;  // [tokens, count, dim]
  int64_t tokens = 0;
  int64_t window = 0;  // token t stands at position t % window
  int count = 0, dim = 0;
  const float* norm = nullptr;  // [dim]
  float eps = 0;
  const float *cos = nullptr, *sin = nullptr;  // [window, rope_dim / 2]
  int rope_dim = 0;
  RopeLayout layout = RopeLayout::kHalf;
};
cudaError_t LaunchWindowsRotate(const WindowsRotateArgs& args, cudaStream_t stream);

// A causal softmax, in place: the query at position p sees the keys from p - sliding + 1 (0 without a sliding
// window) to p; the other keys are masked.
struct WindowsSoftmaxArgs {
  float* scores = nullptr;  // [batch, queries, keys]
  int64_t batch = 0, queries = 0, keys = 0;
  int64_t first = 0;    // the first query's position; keys stand at 0 .. keys - 1
  int64_t sliding = 0;  // 0: all
  float scale = 1;
};
cudaError_t LaunchWindowsSoftmax(const WindowsSoftmaxArgs& args, cudaStream_t stream);

// gate = act(gate) * up, n elements.
cudaError_t LaunchWindowsActivate(Activation kind, float* gate, const float* up, int64_t n,
                                  cudaStream_t stream);

// sums[c] += sum over all rows of |x[r][c]|, of x [rows, cols]
cudaError_t LaunchColumnMagnitudes(const float* x, int64_t rows, int64_t cols, double* sums,
                                   cudaStream_t stream);

// The least i with x[i] not finite goes to *first, if it is less than what is there.
cudaError_t LaunchFirstNotFinite(const float* x, int64_t n, unsigned long long* first, cudaStream_t stream);

}  // namespace celer::cuda
