// The inverse Cholesky factor on a GPU: the upper triangular U with U^T U = A^-1. Blocked: diagonal blocks by
// one kernel, all else by GEMM.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/result.h"
#include "device/allocator.h"
#include "kernels/llm/matmul/cuda/gemm/gemm_f32_cuda.h"

namespace celer::cuda {

// a [n, n] is symmetric and is used up; u [n, n] gets zeros below the diagonal. False if a is not positive
// definite. Scratch comes from `memory`. Waits for the stream.
Result<bool> InverseCholesky(GemmF32& gemm, float* a, int64_t n, float* u, Allocator& memory,
                             cudaStream_t stream);

}  // namespace celer::cuda
