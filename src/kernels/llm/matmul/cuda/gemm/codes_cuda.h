// W8A8: rows of 8-bit codes for products by cuBLASLt, and what stands between those products. A row of
// weights and a token's activations have one scale each (per channel, per token); the products are made of
// the codes alone, and whoever reads the accumulators multiplies with both scales.
//
// int8 has one step for a whole row, and a few columns of activations are outliers, many times larger than
// the others. So both factors are rotated before they are quantized, every 64 columns by an orthogonal
// Hadamard matrix: an outlier is spread over 64, and the product stays the same. fp8 has a step for each
// value.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"

namespace celer::cuda {

enum class Code : uint8_t { kFp8, kInt8 };  // e4m3, or integers from -127 to 127
constexpr int kRotated = 64;                // columns of integers, together

// Accumulators of codes, with the scales of the weights' rows and of the tokens.
struct CodeSums {
  const void* values = nullptr;  // [tokens, rows]; bf16 of fp8, int32 of int8
  const float* row_scales = nullptr;
  const float* token_scales = nullptr;
};
struct CodeRows {
  void* codes = nullptr;    // [rows, padded]
  float* scales = nullptr;  // [rows]
};

// rows bf16 [count, padded] -> codes.
cudaError_t LaunchQuantizeRows(Code code, const void* rows, int64_t count, int padded, const CodeRows& out,
                               cudaStream_t stream);

struct ToCodesArgs {
  Code code = Code::kFp8;
  float* x = nullptr;  // [tokens, cols]
  CodeSums sums = {};  // of `cols` rows, added to x first, if given
  int64_t tokens = 0;
  int cols = 0, padded = 0;
  const float* norm = nullptr;  // an RMS norm in front, if given
  float eps = 0;
  CodeRows out = {};  // none: x alone changes
};
// Up to kMaxCodeColumns columns.
cudaError_t LaunchToCodes(const ToCodesArgs& args, cudaStream_t stream);

// Sums of gate and up, gate first -> act(gate) * up.
cudaError_t LaunchActivateCodes(Code code, const CodeSums& gate_up, int64_t tokens, int cols, int padded,
                                DeviceActivation activation, const CodeRows& out, cudaStream_t stream);

constexpr int kMaxCodeColumns = 32768;

}  // namespace celer::cuda
