// GPTQ on a GPU: grids, act-order, the Cholesky factor of the Hessian, and the loop over columns.
// quantize/llm/gptq.h says what is computed; here are its heavy parts over matrices in the GPU's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace celer::cuda {

// Integers in groups of columns: value = (q - zero) * scale.
struct GptqGrid {
  int bits = 4;  // or 8
  int64_t group = 0;
  bool symmetric = false;  // zero is 2^(bits - 1)
  constexpr int levels() const { return (1 << bits) - 1; }
};

// A matrix of weights and what it becomes.
struct GptqMatrix {
  float* w = nullptr;  // [rows, cols]
  int64_t rows = 0, cols = 0;
  GptqGrid grid = {};
  uint16_t* scales = nullptr;  // bf16 [rows, cols / group]
  uint8_t* zeros = nullptr;    // [rows, cols / group]
  uint8_t* codes = nullptr;    // [rows, cols]
  uint32_t* words = nullptr;   // [rows, cols * bits / 32], the first code in the lowest bits
  constexpr int64_t groups() const { return cols / grid.group; }
};

// The scale and zero point of each group with a small sum of importance [cols] * error^2: of the plain grid
// and `candidates` clipped ones.
cudaError_t LaunchFitGrids(const GptqMatrix& m, const float* importance, int candidates, cudaStream_t stream);

// out [rows, cols]: column i is column order[i] of w.
cudaError_t LaunchOrderColumns(const float* w, int64_t rows, int64_t cols, const int32_t* order, float* out,
                               cudaStream_t stream);

// out[i][j] = gram[order[i]][order[j]] / tokens, of whose upper half alone counts; on the diagonal 1 where it
// is 0, and `damping` is added.
cudaError_t LaunchOrderHessian(const float* gram, int64_t cols, int64_t tokens, const int32_t* order,
                               float damping, float* out, cudaStream_t stream);

constexpr int kGptqBlock = 128;  // columns that are rounded in one launch

// Columns [first, first + count) of the order: their codes, and the error of each as multiples of a row of u,
// [rows, kGptqBlock], to be subtracted from the columns behind by a product (lazy batch update).
struct RoundColumnsArgs {
  GptqMatrix m = {};
  const float* ordered = nullptr;  // [rows, cols], after LaunchOrderColumns() and the products so far
  const float* u = nullptr;        // [cols, cols], upper triangular
  const int32_t* order = nullptr;
  int64_t first = 0;
  int count = 0;
  float* errors = nullptr;
};
cudaError_t LaunchRoundColumns(const RoundColumnsArgs& args, cudaStream_t stream);

// Packs codes into words, and dequantizes them to w.
cudaError_t LaunchPackCodes(const GptqMatrix& m, cudaStream_t stream);

constexpr int kFactorBlock = 64;

// The diagonal block a [n, n] of a symmetric matrix: its upper half becomes R with R R^T = a, and `inverse`
// [kFactorBlock, kFactorBlock] R^-1 with zeros around it. *failed becomes 1 if the block is not positive
// definite; nothing is done if it is 1 already.
cudaError_t LaunchFactorBlock(float* a, int64_t stride, int n, float* inverse, int* failed,
                              cudaStream_t stream);

}  // namespace celer::cuda
