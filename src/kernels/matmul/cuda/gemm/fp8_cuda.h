// Rows of fp8 (e4m3) for products by cuBLASLt, and what stands between those products. A row of weights and a
// token's activations have one scale each; the products are made of the codes alone, and whoever reads their
// sums multiplies with both scales.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/matmul/cuda/matvec/matvec_cuda.h"

namespace celer::cuda {

// Sums of codes, with the scales of the weights' rows and of the tokens.
struct Fp8Sums {
  const void* values = nullptr;  // bf16 [tokens, rows]
  const float* row_scales = nullptr;
  const float* token_scales = nullptr;
};
struct Fp8Rows {
  void* codes = nullptr;    // [rows, padded]
  float* scales = nullptr;  // [rows]
};

// rows bf16 [count, padded] -> fp8.
cudaError_t LaunchQuantizeRows(const void* rows, int64_t count, int padded, const Fp8Rows& out,
                               cudaStream_t stream);

struct ToFp8Args {
  float* x = nullptr;  // [tokens, cols]
  Fp8Sums sums = {};   // of `cols` rows, added to x first, if given
  int64_t tokens = 0;
  int cols = 0, padded = 0;
  const float* norm = nullptr;  // an RMS norm in front, if given
  float eps = 0;
  Fp8Rows out = {};  // none: x alone changes
};
// Up to kMaxFp8Columns columns.
cudaError_t LaunchToFp8(const ToFp8Args& args, cudaStream_t stream);

// Sums of gate and up, gate first -> act(gate) * up.
cudaError_t LaunchActivateFp8(const Fp8Sums& gate_up, int64_t tokens, int cols, int padded,
                              DeviceActivation activation, const Fp8Rows& out, cudaStream_t stream);

constexpr int kMaxFp8Columns = 32768;

}  // namespace celer::cuda
